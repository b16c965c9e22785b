"""Alignment: map every depth of a model into the space of the whole model, or of another model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d.aligning.aligned_model import (
    check_modules,
    declared,
    placed,
    starting_point,
    trained_narrow,
    without_readouts,
)
from st_matryoshka2d.aligning.other_embeddings import Into, Target, target_of
from st_matryoshka2d.aligning.other_space import fit_other
from st_matryoshka2d.aligning.own_space import Fit, fit
from st_matryoshka2d.aligning.refine import Refinement
from st_matryoshka2d.aligning.rotation import ROTATIONS, Rotation
from st_matryoshka2d.aligning.sample import Part, Text, Texts, drawn, gather, parts_of, warn_without_prompts, without_copies
from st_matryoshka2d.cutting.cut import without_adapters
from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.model.agreement_table import agreement_text
from st_matryoshka2d.model.layers import LayersByDepth
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout
from st_matryoshka2d.sizes import Size, mrl_dims, positive_int, sizes_product, validate_sizes

_SAMPLE = 20_000  # texts that are fitted; more hardly improve the fit
_SAMPLE_INTO = 50_000  # for another space, where documents that are fitted are found best
_ROTATED = (
    "`align` rotated the coordinates, so embeddings from before cannot be compared with new ones. "
    "Embed an index again, or rotate it: `vectors @ aligned[-2].linear.weight.T`, without a final "
    "Normalize `aligned[-1]`. To keep the coordinates, pass rotation='keep'."
)


def align(
    model: SentenceTransformer,
    texts: Texts,
    sizes: Sequence[Size | str] | None = None,
    *,
    into: Into | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    layers: str | LayersByDepth | None = None,
    rotation: Rotation | None = None,
    steps: int = 100,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
) -> SentenceTransformer:
    r"""Give every depth of a model a map into the space of the whole model, or of another one.

    No labels, no training. In the model's own space, the map is a **readout**:

    .. math:: z^n = R (A_n h^n + b_n), \quad z^N = R h^N

    with h^n the embedding of a text after n of N layers, before a final `Normalize`; A_n and b_n
    the ridge regression from h^n to h^N, of unit length if the model normalizes, towards the plain
    cut; and R one rotation for all depths, or none. Strengths are chosen on texts left out of the
    fit, so few texts change little. With many, each map is then refined to relate texts as the
    whole model. Where b_n is small beside what the map is off, it is made smaller: it holds the mean
    of texts like these, and worsens similarities of others.

    Afterwards any two sizes share one space, up to the narrower one's dims: queries by 3 layers can
    search an index of the whole model. Small sizes score far better than before; similarities at
    the full size stay the same. Everything in this package uses the readout of a depth. After
    training, or for other texts, align the aligned model again: the maps are merged, and the full
    size does not change, so an index of it stays valid.

    With `into`, all depths search the index of another model, which may be larger, or an earlier
    version of this one. Part of the quality is lost; `docs/alignment.md` has how much. The maps
    have a hidden layer of random units, and A_n and b_n are fitted to the other model's embeddings:

    .. math:: z^n = A_n \, \mathrm{relu}(V h^n + v) + b_n

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`, or with a `Router` over
            several of the same depth. It does not change; the result shares its weights. Half
            precision rounds a rotation, and changes cosines by up to 0.01: use float32.
        texts: About 10,000 texts like those that will be embedded: a list, a column of a
            `datasets.Dataset`, or a generator. Of many, a random sample is embedded, of at most
            20,000; 50,000 with `into`, which needs texts of the index and texts like the queries.
            Empty ones (None, NaN or blank) are left out, and of up to 2,000 different texts near
            copies too. A dict has the texts of several prompts by their names, such as
            `{"query": queries, "document": documents}`.
        sizes: Small sizes to also refine for, such as `["1L-16d", "2L-32d"]`. They become better on
            their own, and worse at searching an index of another size.
        into: Another model; or its embeddings of the texts, in their order and one row for each: an
            array (texts, D'), a `.npy` file of one, or a Parquet file or a folder of them with a
            column of vectors, such as `encode_to_parquet` writes; the widest is taken. For a dict
            of texts, a dict of embeddings. Readouts of an earlier alignment are replaced.
        prompt: Put in front of each text, as by `SentenceTransformer.encode`; not by another model.
        prompt_name: Name of the prompt to put in front of each text, unless `prompt` is given.
            Another model takes its own of that name. None: the default prompt of each, if any.
        layers: Which layers each depth keeps. None: those that the model was aligned or trained
            with, otherwise `"ends"`: half from the start and half from the end, such as layers 1, 5
            and 6 of six, because the last layers write the embedding; one layer is the first, or
            the last where the first alone is no model of its family. `"first"`: the first ones, so
            that one forward pass serves all depths; they score worse. A dict names those of some
            depths, `{2: [1, 6]}`.
        rotation: What the first coordinates are chosen for. None: they stay, unless a rotation is
            clearly better for texts that are close in meaning, and the model was not trained for
            several dims. `"keep"`: they stay, so that the full size is the model as it was, bit for
            bit, and so is an index. `"similarity"` and `"search"`: the best of these and a few
            rotations, for close texts or for the nearest texts of the corpus.
        steps: Steps of gradient descent that refine each depth in the model's own space, if more
            than 2,000 texts are different; 0 for none.
        batch_size: Texts per forward pass.
        show_progress_bar: Show progress bars, and then a table of what each size keeps. None: bars
            alone, on a terminal or in a notebook.

    Returns:
        A `SentenceTransformer` with one more module, in front of the final `Normalize`. Saved, it
        also loads with plain sentence-transformers, as a `Dense` at the full size; `load` restores
        all maps. Its config has the agreement of each size with the full size, or with the other
        model, measured on texts left out of the fit: `GridResult.from_agreement(aligned)`. With
        `into`, it has two more modules, the other dims, and normalizes if the other embeddings have
        length 1.

    Raises:
        TypeError: `texts` has other values than strings, or the model is not a
            `SentenceTransformer`.
        ValueError: There are fewer than three different texts; a model has no prompt of that name,
            or a `truncate_dim`; both a dict and a prompt are given; embeddings are not finite; or a
            `Router` is followed by other modules than a `Normalize`. With `into`: `sizes` or
            `rotation` is given, a model starts with a `Router`, `model` is in the space of another
            one already, or there are not as many embeddings as texts.
        FileNotFoundError: There are no files of embeddings.

    Warns:
        UserWarning: The coordinates were rotated, so an index of the model is void.
        DataWarning: Texts are empty. A model declares prompts, and the texts have none. There are
            too few texts: below 100 different ones, or 1,000 with `into`. Embeddings hardly relate
            to the texts.

    References:
        - Affine maps from a layer to the last, in language models: Tuned Lens,
          https://arxiv.org/abs/2303.08112, and Jump to Conclusions,
          https://arxiv.org/abs/2303.09435.
        - LEAF, https://arxiv.org/abs/2509.12539: a small model for queries in a large one's space.
        - Drift-Adapter, https://arxiv.org/abs/2509.23471: from a new model into an old one's index.

    Example:
        >>> from st_matryoshka2d import truncate
        >>> things = ["a cat", "my car", "rain", "the piano", "soup", "a tall tree"]
        >>> ends = ("at home", "in town", "today", "again", "is good")
        >>> texts = [f"{thing} {end}" for thing in things for end in ends]
        >>> aligned = align(model, texts, steps=5)
        >>> queries = truncate(aligned, num_layers=3).encode(texts[::10])
        >>> model.similarity(queries, aligned.encode(texts[::10])).argmax(dim=1)
        tensor([0, 1, 2])
        >>> index = model.encode(texts)[:, ::-1].copy()  # stands for embeddings by another model
        >>> query = align(model, texts, into=index).encode("the piano in town")
        >>> texts[model.similarity(query, index).argmax()]
        'the piano in town'
    """
    # The refinement needs gradients even if the caller is in no_grad or inference_mode.
    with torch.inference_mode(False), torch.enable_grad():
        pipeline = Pipeline.of(model)
        _check(pipeline, sizes, into, rotation)
        steps = positive_int(steps, "steps", least=0)
        small = _small_sizes(pipeline.full, sizes)
        hidden = None if show_progress_bar is None else not show_progress_bar  # None: `progress` decides
        parts = parts_of(model, texts, prompt, prompt_name)
        target = None if into is None else target_of(into, texts, prompt_name, batch_size, hidden)
        start = starting_point(without_adapters(pipeline), layers)
        if target is None:
            # For small dims it improves these sizes alone, but all dims get worse across depths.
            asked = small if sizes is not None else ()
            device = model.device if model.device.type == "cuda" else torch.device("cpu")
            refinement = Refinement(asked, steps, device, hidden)
            result = _fit_own(start, parts, _rotation(start, rotation), refinement, batch_size)
        else:
            start = without_readouts(start)
            result = _fit_other(start, parts, target, batch_size, hidden)
        for told in result.told:
            warn(told, DataWarning)
        if result.rotated:
            warn(_ROTATED)
        aligned = declared(placed(start, result), model, small, result, target)
        if show_progress_bar:
            name = target.name if target else None
            tqdm.write(agreement_text(aligned.declaration.agreement, name))
        return aligned.model


def _fit_own(
    start: Pipeline, parts: Sequence[Part], rotation: Rotation | None, refinement: Refinement, batch_size: int
) -> Fit:
    """Fit all depths to the whole model."""
    sample, total = _sampled(start, parts, _SAMPLE, start.layers.passes())
    gathered = without_copies(gather(start, sample, batch_size, refinement.hide_progress_bar))
    return fit(gathered, rotation, refinement, total, unit=bool(start.trailing_normalize()))


def _fit_other(start: Pipeline, parts: Sequence[Part], target: Target, batch_size: int, hidden: bool | None) -> Fit:
    """Fit all depths to another model, or to embeddings."""
    sample, total = _sampled(start, parts, _SAMPLE_INTO)
    z = target.rows(sample, parts)
    return fit_other(gather(start, sample, batch_size, hidden, close=False)[""], z, total, hidden)


def _sampled(start: Pipeline, parts: Sequence[Part], most: int, cost: float = 1.0) -> tuple[list[Text], int]:
    """Draw the texts that are fitted; also count all."""
    check_modules(start)
    sample, total = drawn(parts, most, 4 * start.full.num_layers * start.full.dim, cost)
    warn_without_prompts(start.model, sample)
    return sample, total


def _check(pipeline: Pipeline, sizes: Sequence[Size | str] | None, into: Into | None, rotation: Rotation | None) -> None:
    """Refuse a model that cannot be aligned, and arguments that exclude each other."""
    if (dim := pipeline.model.truncate_dim) is not None:
        raise UsageError(
            f"The model has truncate_dim={dim}, but all of its dims are aligned. "
            "Set truncate_dim = None, align, and cut it afterwards."
        )
    if rotation is not None and rotation not in ROTATIONS:
        names = ", ".join(map(repr, ROTATIONS))
        raise UsageError(f"rotation must be {names} or None, got {rotation!r}.")
    if into is None:
        return
    if sizes is not None or rotation is not None:
        raise UsageError(
            "`sizes` and `rotation` are about the model's own space, so neither can be given with "
            f"`into`; got {sizes=} and {rotation=}."
        )
    if pipeline.has_router:
        raise UsageError(
            "The model starts with a Router. Map one route alone, as a SentenceTransformer of its "
            'modules: load(folder, route="query") returns it.'
        )
    if known := pipeline.declaration.into:
        raise UsageError(f"This model is in the space of {known} already. Pass what it was made of.")


def _small_sizes(full: Size, sizes: Sequence[Size | str] | None) -> list[Size]:
    """Return the sizes with fewer layers and fewer dims: those asked for, or all."""
    every = sizes_product(range(1, full.num_layers + 1), mrl_dims(full.dim))
    wanted = every if sizes is None else validate_sizes(sizes, full)
    return [size for size in wanted if size.num_layers < full.num_layers and size.dim < full.dim]


def _rotation(pipeline: Pipeline, rotation: Rotation | None) -> Rotation | None:
    """Keep coordinates that training relied on, or that an index of an aligned model has."""
    aligned = any(isinstance(module, Readout) for module in pipeline.model.modules())
    return "keep" if aligned or (rotation is None and trained_narrow(pipeline)) else rotation
