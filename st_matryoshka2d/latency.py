"""How long a model takes at each depth, on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import cycle, islice

import pandas as pd
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d.cut import cut_to
from st_matryoshka2d.layers import routes_of
from st_matryoshka2d.sizes import Size, all_within, full_size, positive_int, validate_sizes
from st_matryoshka2d.texts import check_texts, require_padding

_ROUNDS_TO_ONE_OF_WARM_UP = 10

# From a search query to a paragraph, since padding and attention cost differently at different lengths. The first two are
# one of each, so that a batch of two has both.
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
    model: SentenceTransformer,
    num_layers: int | Iterable[int] | None = None,
    texts: Sequence[str] | None = None,
    *,
    sizes: Iterable[Size | str] | None = None,
    batch_size: int = 32,
    rounds: int = 30,
    show_progress_bar: bool = True,
) -> pd.DataFrame:
    """Time `encode` at several depths against the full model.

    Only depths are timed: a narrower embedding takes no less time. Times are of the whole call, tokenisation included, so
    the gain is smaller than the layers alone would give. Depths take turns, so that other load hits all of them alike. A
    single query waits longer than `milliseconds_per_text`, because a batch shares work; to time one, give a list of one.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`, on the device to be measured; it is left as it is.
            Of a `Router` the default route is timed.
        num_layers: Depths, each 1..N; None for all. The full model is always timed as well.
        texts: What one call encodes, all of it; None for one batch of English texts of 2 to 55 words.
        sizes: Sizes whose depths are timed, such as those of a grid, instead of `num_layers`.
        batch_size: Texts in a batch of the model, and in the default batch.
        rounds: Timed calls for each depth, after a tenth as many, and at least one, that do not count.
        show_progress_bar: Show one step for each call.

    Returns:
        One row for each depth, ascending. `milliseconds`: median of one call over the rounds; `milliseconds_per_text`: the
        same divided by the number of texts; `low`, `high`: the quartiles around `milliseconds`; `parameters`: weights of
        the cut; `theory`: N / num_layers; `speedup`: `milliseconds` of the full model divided by those of this depth.

    Raises:
        TypeError: `texts` is one string, or a number is not an integer.
        ValueError: A depth is not within the model or given twice, both `num_layers` and `sizes` are given, there are no
            texts, one has half of a surrogate pair, a number is below 1, or the tokenizer has no padding token.

    Example:
        >>> times = benchmark_latency(model, num_layers=[2, 4], batch_size=4, rounds=3, show_progress_bar=False)
        >>> list(times["num_layers"]), list(times["theory"])
        ([2, 4, 6], [3.0, 1.5, 1.0])
        >>> list(times["parameters"])
        [15615360, 19164288, 22713216]
    """
    routes_of(model)
    positive_int(batch_size, "batch_size")
    positive_int(rounds, "rounds")
    if texts is not None:
        check_texts(texts)
    batch = list(islice(cycle(_TEXTS), batch_size)) if texts is None else list(texts)
    if not batch:
        raise ValueError("texts is empty; at least one text is needed.")
    require_padding(model)
    full = full_size(model)
    depths = sorted({full.num_layers, *_depths(num_layers, sizes, full)})
    cuts = {depth: cut_to(model, num_layers=depth) for depth in depths}
    seconds = _time_in_turns(cuts, batch, batch_size, rounds, show_progress_bar)
    quartiles = seconds.quantile([0.25, 0.5, 0.75]) * 1000
    milliseconds = quartiles.loc[0.5]
    return pd.DataFrame(
        {
            # what matters comes first and last, because a narrow terminal leaves out the middle
            "num_layers": depths,
            "milliseconds_per_text": milliseconds.to_numpy() / len(batch),
            "milliseconds": milliseconds.to_numpy(),
            "low": quartiles.loc[0.25].to_numpy(),
            "high": quartiles.loc[0.75].to_numpy(),
            # a Module gives each of its parameters once, however often it is used
            "parameters": [sum(weight.numel() for weight in cut.parameters()) for cut in cuts.values()],
            "theory": [full.num_layers / depth for depth in depths],
            "speedup": (milliseconds[full.num_layers] / milliseconds).to_numpy(),
        }
    )


def _depths(num_layers: int | Iterable[int] | None, sizes: Iterable[Size | str] | None, full: Size) -> Iterable[int]:
    if sizes is not None:
        if num_layers is not None:
            raise ValueError("Give num_layers or sizes, not both.")
        return {size.num_layers for size in validate_sizes(sizes, full)}
    return range(1, full.num_layers) if num_layers is None else all_within(num_layers, full.num_layers, "num_layers")


def _time_in_turns(
    models: dict[int, SentenceTransformer], texts: list[str], batch_size: int, rounds: int, show_progress_bar: bool
) -> pd.DataFrame:
    """Seconds for one call: a row for each round, a column for each model."""
    names = list(models)
    warm_up = max(1, rounds // _ROUNDS_TO_ONE_OF_WARM_UP)
    seconds: list[dict[int, float]] = []
    with tqdm(total=(warm_up + rounds) * len(names), desc="Warm-up", disable=not show_progress_bar) as bar:
        for turn in range(warm_up + rounds):
            if turn == warm_up:
                bar.set_description("Timed calls")
            first = turn % len(names)
            timed: dict[int, float] = {}
            for name in names[first:] + names[:first]:
                start = time.perf_counter()
                # Embeddings come back as arrays, so work that a GPU was only given, and has not done yet, is waited for.
                models[name].encode(texts, batch_size=batch_size, show_progress_bar=False)
                timed[name] = time.perf_counter() - start
                bar.update()
            seconds.append(timed)
    return pd.DataFrame(seconds[warm_up:], columns=names)
