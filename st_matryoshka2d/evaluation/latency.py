"""Measure the time of a model at each depth."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from itertools import cycle, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from sentence_transformers.base.model import BaseModel
from tqdm.auto import tqdm

from st_matryoshka2d.cutting.cut import cut_to, without_adapters
from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.model.kind import Kind, kind_of
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import least_depth, own_weights
from st_matryoshka2d.model.sides import sides_of
from st_matryoshka2d.pairs import checked_pair, pair_rows
from st_matryoshka2d.sizes import Size, all_within, full_size, megabytes, positive_int, validate_sizes
from st_matryoshka2d.texts import filled_texts

if TYPE_CHECKING:
    from jaxtyping import Float

_ROUNDS_TO_ONE_OF_WARM_UP = 10

# From a search query to a paragraph, because padding and attention depend on the length. The first
# two have both lengths, for batches of two.
_TEXTS = [
    "how to descale a kettle",
    "The study followed four hundred nurses for ten years and measured their sleep with a wrist sensor. Those on night "
    "shifts slept an hour less than those on day shifts, and the gap did not close on days off. Neither age nor the "
    "number of children explained it; the length of the way home did, in part.",
    "The train to the coast leaves at a quarter past six and stops at every village on the way.",
    "Rain expected.",
    "Our bakery opens at seven, but the first loaves are usually gone by eight, so come early or call ahead.",
    "What is the difference between a lease and a licence?",
    "She tuned the old piano by ear.",
    "Version 3 reads its settings from one file; settings in the environment are no longer looked at, and a warning names "
    "each one that would have changed something.",
]


def benchmark_latency(
    model: BaseModel,
    num_layers: int | Iterable[int] | None = None,
    texts: Iterable[str] | Iterable[tuple[str, str]] | None = None,
    *,
    sizes: Iterable[Size | str] | None = None,
    batch_size: int = 32,
    rounds: int = 30,
    int8: bool = False,
    show_progress_bar: bool = True,
) -> pd.DataFrame:
    """Time `encode` at several depths, or `predict` of a reranker, and compare with the full model.

    Only depths are timed, because fewer dims do not save time. Times include tokenisation, so the
    speedup is smaller than the number of layers suggests. Depths take turns, so that other load
    affects all of them. A single query takes longer than `milliseconds_per_text`, because texts of
    a batch share work; `batch_size=1` times one at a time.

    Args:
        model: Any `SentenceTransformer`, `CrossEncoder`, `SparseEncoder` or `MultiVectorEncoder`
            that starts with a `Transformer`, on the device to measure; it is not changed. For a
            `Router`, the default route is timed; of an `asymmetric` model, each side with its prompt.
        num_layers: Depths, each 1..N, or 0 for a token table; None for all. The full model is
            always timed as well.
        texts: Texts to encode in each call, without empty ones, or the pairs of a query and a
            document that a reranker scores; None for one batch of English texts of 2 to 55 words.
        sizes: Sizes whose depths to time, such as those of a grid, instead of `num_layers`.
        batch_size: Texts per forward pass, and in the default batch.
        rounds: Timed calls per depth, after a tenth as many warm-up calls, at least one.
        int8: Count the bytes of the file that `export_onnx(cut, folder, int8=True)` writes, to some
            tenths of a megabyte. Times are those of the model as it is.
        show_progress_bar: Show a progress bar with one step per call.

    Returns:
        One row per depth, ascending. `milliseconds`: median time of a call; `milliseconds_per_text`:
        the same divided by the number of texts, or of pairs; `low`, `high`: quartiles of the time of a call;
        `parameters`: weights of the cut, of an aligned model without the readouts and the token
        table of other depths; `megabytes`: millions of bytes that they take in a checkpoint, at the
        precision that the model has now, or with `int8` in a graph; `theory`: N / num_layers, NaN for a token table;
        `speedup`: `milliseconds` of the full model divided by those of this depth.

    Raises:
        TypeError: `texts` is one string or a table, a text is not a string, or a number is not an
            integer.
        ValueError: A depth exceeds the model or is repeated, both `num_layers` and `sizes` are
            given, there are no texts, one has half of a surrogate pair, a number is below 1, or the
            tokenizer has no padding token.

    Warns:
        DataWarning: The quartiles of two neighbouring depths overlap, as on a busy machine; texts
            are empty and left out.

    Example:
        >>> times = benchmark_latency(model, num_layers=[2, 4], batch_size=4, rounds=3, show_progress_bar=False)
        >>> list(times["num_layers"]), list(times["theory"])
        ([2, 4, 6], [3.0, 1.5, 1.0])
        >>> list(times["parameters"])
        [15615360, 19164288, 22713216]
        >>> [round(number, 1) for number in times["megabytes"]]
        [62.5, 76.7, 90.9]
    """
    batch_size, rounds = positive_int(batch_size, "batch_size"), positive_int(rounds, "rounds")
    by_depth = _timed(model, num_layers, sizes)
    batch = _batch(texts, batch_size, kind_of(model))
    if not batch:
        raise UsageError("texts is empty; at least one text is needed.")
    depths, cuts = list(by_depth), list(by_depth.values())
    seconds = _time_in_turns(cuts, batch, batch_size, rounds, show_progress_bar)
    weights = [own_weights(cut) for cut in cuts]  # shared ones once
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75], axis=0) * 1000
    if told := _overlap(depths, low, high):
        warn(told, DataWarning)
    return pd.DataFrame(
        {
            # the main columns come first and last, because a narrow terminal hides the middle
            "num_layers": depths,
            "milliseconds_per_text": median / len(batch),
            "milliseconds": median,
            "low": low,
            "high": high,
            "parameters": [sum(weight.numel() for weight in of_cut) for of_cut in weights],
            "megabytes": [megabytes(of_cut, int8=int8) for of_cut in weights],
            "theory": [depths[-1] / depth if depth else math.nan for depth in depths],
            "speedup": median[-1] / median,
        }
    )


def _batch(texts: Any, batch_size: int, kind: Kind) -> Sequence[Any]:
    """Return the texts, or pairs, of a call."""
    if texts is None:
        some = list(islice(cycle(_TEXTS), batch_size + 1))
        return list(pairwise(some)) if kind.reads_pairs else some[:batch_size]
    if kind.reads_pairs:
        return [checked_pair(row, place) for place, row in enumerate(pair_rows(texts))]
    return filled_texts(texts)


def _timed(
    model: BaseModel, num_layers: int | Iterable[int] | None, sizes: Iterable[Size | str] | None
) -> dict[int, BaseModel]:
    """Return the model at each depth, ascending."""
    if sides := sides_of(model):
        if num_layers is not None or sizes is not None:
            raise UsageError("The depths of an asymmetric model are fixed: leave num_layers and sizes out.")
        return dict(sorted((full_size(side).num_layers, side) for side in sides.values()))
    pipeline = Pipeline.of(model, BaseModel)
    pipeline.require_padding()
    depths = sorted({pipeline.full.num_layers, *_depths(num_layers, sizes, pipeline.full, least_depth(model))})
    whole = without_adapters(pipeline)  # merged once for all cuts
    return {depth: cut_to(whole, num_layers=depth) for depth in depths}


def _overlap(depths: Sequence[int], low: Float[np.ndarray, " depths"], high: Float[np.ndarray, " depths"]) -> str | None:
    """Tell which depths the times cannot tell apart; None if they can."""
    first = next((place for place in range(len(depths) - 1) if high[place] > low[place + 1]), None)
    if first is None:
        return None
    shallow, deep = (f"{depths[place]} layers {low[place]:.1f} to {high[place]:.1f} ms" for place in (first, first + 1))
    return (
        f"The times overlap (quartiles: {shallow}, {deep}), so they do not tell which depth is faster. Close other "
        "programs, or time more or longer texts."
    )


def _depths(
    num_layers: int | Iterable[int] | None, sizes: Iterable[Size | str] | None, full: Size, least: int
) -> Iterable[int]:
    if sizes is not None:
        if num_layers is not None:
            raise UsageError("Give num_layers or sizes, not both.")
        return {size.num_layers for size in validate_sizes(sizes, full, least=least)}
    if num_layers is None:
        return range(least, full.num_layers)
    return all_within(num_layers, full.num_layers, "num_layers", least)


def _time_in_turns(
    models: Sequence[BaseModel], texts: Sequence[Any], batch_size: int, rounds: int, show_progress_bar: bool
) -> Float[np.ndarray, "rounds models"]:
    """Return the seconds of each call."""
    warm_up = max(1, rounds // _ROUNDS_TO_ONE_OF_WARM_UP)
    seconds = np.zeros((warm_up + rounds, len(models)))
    with tqdm(total=seconds.size, desc="Warm-up", disable=not show_progress_bar) as bar:
        for turn in range(warm_up + rounds):
            if turn == warm_up:
                bar.set_description("Timed calls")
            # another model comes first in each round
            for place in np.roll(range(len(models)), -turn):
                start = time.perf_counter()
                kind_of(models[place]).run(models[place], texts, batch_size=batch_size, show_progress_bar=False)
                if models[place].device.type == "cuda":
                    torch.cuda.synchronize()
                seconds[turn, place] = time.perf_counter() - start
                bar.update()
    return seconds[warm_up:]
