"""Alignment: map every depth of a model into the space of the whole model, without labels and without training."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d.aligning.fit import fitted
from st_matryoshka2d.aligning.gather import gather
from st_matryoshka2d.aligning.parts import parts_of
from st_matryoshka2d.aligning.place import check_modules, placed
from st_matryoshka2d.aligning.refine import Refinement
from st_matryoshka2d.aligning.rotation import ROTATIONS, Rotation
from st_matryoshka2d.aligning.starting_point import starting_point, trained_narrow
from st_matryoshka2d.data_warning import DataWarning
from st_matryoshka2d.model.cut import without_adapters
from st_matryoshka2d.model.declared_agreement import agreement_text, declare_agreement, declared_agreement
from st_matryoshka2d.model.identity import inherit_card, name_apart
from st_matryoshka2d.model.kept_layers import LayersByDepth
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout, expect_readouts
from st_matryoshka2d.model.token_table import least_depth
from st_matryoshka2d.model.trained_sizes import ALIGN, declare_dims, declare_training, declared_dims
from st_matryoshka2d.sizes import Size, full_size, mrl_dims, positive_int, sizes_product, validate_sizes


def align(
    model: SentenceTransformer,
    texts: Iterable[str] | Mapping[str, Iterable[str]],
    sizes: Sequence[Size | str] | None = None,
    *,
    prompt: str | None = None,
    prompt_name: str | None = None,
    layers: str | LayersByDepth | None = None,
    rotation: Rotation | None = None,
    steps: int = 100,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
) -> SentenceTransformer:
    r"""Give every depth of a model a readout: an affine map into the space of the whole model. No labels, no training.

    .. math:: z^n = R (A_n h^n + b_n), \quad z^N = R h^N

    with h^n the embedding of a text after n of N layers, before a final `Normalize`; A_n and b_n the ridge regression from
    h^n to h^N, of unit length if the model normalizes, towards the plain cut; and R one rotation for all depths, or none.
    It is computed from embeddings of the texts in closed form. Strengths are chosen on texts left out of the fit, so few
    texts change little. With many texts, each map is then refined to relate texts as the whole model does.

    Afterwards any two sizes share one space, up to the narrower one's dims: queries embedded by 3 layers can search an index
    of the whole model. Sizes with few layers or few dims score far better than before; all similarities at the full size
    stay the same. `truncate`, `load`, `encode_sizes`, `evaluate`, the losses and everything else use the readout of their
    depth. After training, or for other texts, align the aligned model again: the new maps are merged into the old ones, and
    the full size does not change, so an existing index of it stays valid.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`, or with a `Router` over several of the same depth.
            It does not change; the result shares its weights. Half precision rounds a rotation, and changes cosines at the
            full size by up to 0.01: use float32.
        texts: About 10,000 texts like those that will be embedded: a list, a column of a `datasets.Dataset`, or a generator.
            Of many texts, a random sample is embedded, of at most 20,000. Empty ones (None, NaN or blank) are left out. A
            dict has the texts of several prompts by their names, such as `{"query": queries, "document": documents}`.
        sizes: Small sizes to also refine for, such as `["1L-16d", "2L-32d"]`. They become better on
            their own, and worse at searching an index of another size. Every depth gets a readout in any case.
        prompt: Put in front of each text, as by `SentenceTransformer.encode`.
        prompt_name: Name of the model's prompt to put in front of each text, unless `prompt` is given. With neither, it is
            the model's default prompt, if it has one.
        layers: Which layers each depth keeps. `"ends"`: three fifths from the start and two from the end, such as layers 1,
            2 and 6 of six, because the last layers write the embedding. `"first"`: the first ones, so that one forward pass
            serves all depths; they score worse. A dict names the layers of some depths, `{2: [1, 6]}`. None: as the model
            has it, at first `"ends"`.
        rotation: What the first coordinates are chosen for. None: they stay as they are, unless a rotation is clearly better
            for texts that are close in meaning. Of a model that was trained for several dims they always stay. `"keep"`:
            they stay, so that the full size is the model as it was, bit for bit, and so is an index. `"similarity"` and
            `"search"`: a rotation if it is clearly better for close texts, or for the nearest texts of the corpus.
        steps: Steps of gradient descent that refine each depth, if there are more than 2,000 texts; 0 for none.
        batch_size: Texts per forward pass.
        show_progress_bar: Show progress bars, and then a table of what each size keeps. None: bars alone, on a terminal or
            in a notebook.

    Returns:
        A `SentenceTransformer` with one more module, in front of the final `Normalize`. Saved, it also loads with plain
        sentence-transformers, as a `Dense` at the full size; `load` restores the readouts. To compare vectors from before
        the alignment with new ones, rotate them: `vectors @ aligned[-2].linear.weight.T`. Its config has the agreement of
        each size with the full size, measured on texts left out of the fit: `GridResult.from_agreement(aligned)`.

    Raises:
        TypeError: `texts` has other values than strings, or the model is not a `SentenceTransformer`.
        ValueError: There are fewer than three different texts, the model has no prompt of that name, both a dict and a
            prompt are given, the model has a `truncate_dim`, its embeddings are not finite, or a `Router` is followed by
            other modules than a `Normalize`.

    Warns:
        DataWarning: Texts are empty; the message counts them and names the first few. The model declares prompts, and the
            texts get none and have none. There are too few texts, not counting near copies: below 100, or so few that a
            depth agrees less with the whole model than before. The message tells what was measured, on texts left out of
            the fit.

    References:
        - Affine maps from a layer to the last, in language models: Tuned Lens, https://arxiv.org/abs/2303.08112, and Jump to
          Conclusions, https://arxiv.org/abs/2303.09435.
        - LEAF, https://arxiv.org/abs/2509.12539: a small model for queries in the space of a large one for documents.

    Example:
        >>> from st_matryoshka2d import truncate
        >>> things = ["a cat", "my car", "rain", "the piano", "soup", "a tall tree"]
        >>> texts = [f"{thing} {rest}" for thing in things for rest in ("at home", "in town", "today", "again", "is good")]
        >>> aligned = align(model, texts, steps=5)
        >>> queries, documents = truncate(aligned, 3).encode(texts[::10]), aligned.encode(texts[::10])
        >>> model.similarity(queries, documents).argmax(dim=1)
        tensor([0, 1, 2])
    """
    # The refinement needs gradients even if the caller is in no_grad or inference_mode.
    with torch.inference_mode(False), torch.enable_grad():
        dims = _dims_by_depth(model, sizes)
        if rotation is not None and rotation not in ROTATIONS:
            raise ValueError(f"rotation must be {', '.join(map(repr, ROTATIONS))} or None, got {rotation!r}.")
        if steps != 0:
            steps = positive_int(steps, "steps")
        parts = parts_of(model, texts, prompt, prompt_name)
        model = starting_point(without_adapters(model), layers)
        check_modules(model)
        hidden = None if show_progress_bar is None else not show_progress_bar  # None has tqdm look for a terminal
        gathered = gather(model, parts, batch_size, hidden)
        # Training relied on the coordinates of an aligned model, and an index may contain them.
        if any(isinstance(module, Readout) for module in model.modules()) or (rotation is None and trained_narrow(model)):
            rotation = "keep"
        device = model.device if model.device.type == "cuda" else torch.device("cpu")
        # Refining for small dims improves these sizes alone, but all dims get worse across depths.
        refinement = Refinement({} if sizes is None else dims, steps, device, hidden)
        unit = bool(Pipeline.of(model).trailing_normalize())
        readouts, kept, told = fitted(gathered, rotation, refinement, unit=unit)
        if told:
            warnings.warn(told, DataWarning, stacklevel=2)
        aligned = _declared(placed(model, readouts), model, dims, kept)
        if show_progress_bar:
            tqdm.write(agreement_text(declared_agreement(aligned.config)))
        return aligned


def _dims_by_depth(model: SentenceTransformer, sizes: Sequence[Size | str] | None) -> dict[int, list[int]]:
    """Return the requested small dims for each depth below the full one."""
    full = Pipeline.of(model).full
    if model.truncate_dim is not None:
        raise ValueError(
            f"The model has truncate_dim={model.truncate_dim}, but readouts map to all dims of the whole model. "
            "Set truncate_dim = None, align, and cut it afterwards."
        )
    every = sizes_product(range(1, full.num_layers + 1), mrl_dims(full.dim))
    wanted = every if sizes is None else validate_sizes(sizes, full)
    below = [size for size in wanted if size.num_layers < full.num_layers and size.dim < full.dim]
    return {depth: [size.dim for size in below if size.num_layers == depth] for depth in range(1, full.num_layers)}


def _declared(
    aligned: SentenceTransformer, model: SentenceTransformer, dims: Mapping[int, list[int]], kept: Mapping[Size, float]
) -> SentenceTransformer:
    """Write readouts, sizes, their agreement and a new name into the config and card of the aligned model."""
    inherit_card(aligned, model)
    aligned.model_card_data.add_tags("aligned")
    full = full_size(model)
    fine = [Size(depth, dim) for depth, row in dims.items() for dim in [*row, full.dim]]
    narrow = [Size(full.num_layers, dim) for dim in sorted({size.dim for size in fine} - {full.dim})]
    before = getattr(model.config, "matryoshka_loss", None) or ALIGN
    of_table = {size: value for size, value in declared_agreement(model.config).items() if not size.num_layers}
    trained_by = before.removesuffix(ALIGN).removesuffix(", ")
    for route in Pipeline.of(aligned).routes.values():
        config: Any = route.transformer.model.config
        declare_dims(config, {*declared_dims(config), *(size.dim for size in fine), full.dim})
        config.matryoshka_readouts = [*range(least_depth(model), 1), *sorted(dims)]
        expect_readouts(route.transformer, True)
        if before == ALIGN:
            config.matryoshka_sizes = []  # the sizes of an earlier alignment no longer apply
        declare_training(config, [*fine, *narrow, full], f"{trained_by}, {ALIGN}" if trained_by else ALIGN)
        declare_agreement(config, {**of_table, **kept})
    name_apart(aligned, model, "aligned")
    return aligned
