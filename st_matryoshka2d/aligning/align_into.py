"""Map every depth of a model into the space of another model, to search an index that the other one has made."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import Tensor
from tqdm.auto import tqdm

from st_matryoshka2d.aligning.agreement import agreement_across
from st_matryoshka2d.aligning.gather import drawn, embedded, warn_without_prompts
from st_matryoshka2d.aligning.hidden import Hidden
from st_matryoshka2d.aligning.other_space import fit_into
from st_matryoshka2d.aligning.parts import parts_of
from st_matryoshka2d.aligning.place import placed_into, without_readouts
from st_matryoshka2d.aligning.ridge import Fitted
from st_matryoshka2d.aligning.starting_point import starting_point
from st_matryoshka2d.aligning.target import Embeddings, Texts, target_of
from st_matryoshka2d.data_warning import DataWarning
from st_matryoshka2d.dims import prefix
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.model.cut import without_adapters
from st_matryoshka2d.model.declared_agreement import INTO, declare_agreement
from st_matryoshka2d.model.identity import inherit_card, model_name, name_apart
from st_matryoshka2d.model.kept_layers import LayersByDepth
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import expect_readouts
from st_matryoshka2d.model.trained_sizes import ALIGN, declare_dims, declare_training, declared_dims
from st_matryoshka2d.sizes import Size, mrl_dims, positive_int, sizes_product

_SAMPLE = 50_000  # texts that are embedded; documents that are fitted are found best
_UNITS, _TEXTS_PER_UNIT = 4096, 4
_FEW = 1000  # with fewer texts, less than two thirds of the search scores are kept
_COMPARED = 512  # texts whose similarities are compared
_CHANCE = 0.1  # an agreement that embeddings of other texts may have
_ROUNDING = 0.01  # of lengths in half precision


def align_into(
    model: SentenceTransformer,
    texts: Texts,
    into: SentenceTransformer | Embeddings | Mapping[str, Embeddings],
    *,
    prompt_name: str | None = None,
    layers: str | LayersByDepth | None = None,
    units: int | None = None,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
) -> SentenceTransformer:
    r"""Give every depth of a model a map into the space of another model, to search an index that the other one has made.

    .. math:: z^n = A_n \, \mathrm{relu}(V h^n + v) + b_n

    with h^n the embedding of a text after n layers; V and v a hidden layer for all depths, which contains h^n itself and
    random units; and A_n and b_n fitted to the other model's embeddings of the same texts in closed form: a rotation, and a
    correction by ridge regression, whose strength is chosen on texts left out. No labels and no training.

    The other model may be larger, or an earlier version of this one. Its index stays as it is, and queries need only this
    model: all of its layers, or fewer. Part of the search quality is lost: `docs/alignment.md` has how much. Most of it
    depends on the texts. Pass those that the index has, and texts like the queries, some 10,000 or more of them.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`. It does not change; the result shares its weights.
            Readouts of an earlier alignment are replaced.
        texts: Texts of the index and texts like the queries, as for `align`. Of many, 50,000 are drawn at random. A dict has
            the texts of several prompts by their names, `{"query": queries, "document": documents}`: each model embeds them
            with its own prompts of these names.
        into: The other model; or its embeddings of the texts, in their order and one row for each, which are then not
            embedded again: an array (texts, D'), a `.npy` file of one, or a Parquet file or a folder of them with a column
            of vectors, such as `encode_to_parquet` writes; the widest column is taken. For a dict of texts, a dict of such
            embeddings. Whether they are of these texts cannot be checked; if they hardly relate to them, a warning tells.
        prompt_name: Name of the prompt of all texts, in both models. None: the default prompt of each model, if it has one.
        layers: Which layers each depth keeps, as for `align`.
        units: Random units of the hidden layer. None: one for four texts, up to 4,096. 0: no hidden layer, so that the
            maps are affine, smaller and a little worse.
        batch_size: Texts per forward pass.
        show_progress_bar: Show progress bars. None: on a terminal or in a notebook.

    Returns:
        A `SentenceTransformer` with the dims of the other model. All depths work: `truncate`, `encode_sizes`, `evaluate`.
        Saved, it loads with plain sentence-transformers at its full size, as `Dense` modules; `load` restores the maps of
        all depths. It normalizes if the other embeddings have length 1. Its config has how well each size agrees with the
        other model, measured on texts left out of the fit: `GridResult.from_agreement`.

    Raises:
        TypeError: `texts` has other values than strings, or the model is not a `SentenceTransformer`.
        ValueError: There are fewer than three different texts, a model lacks a prompt of that name, has a `truncate_dim` or
            a `Router`, `model` is in the space of another model already, or there are not as many embeddings as texts.
        FileNotFoundError: There are no files of embeddings.

    Warns:
        DataWarning: Texts are empty; there are fewer than 1,000; a model declares prompts, and the texts have none; or the
            embeddings hardly relate to the texts.

    References:
        - Drift-Adapter, https://arxiv.org/abs/2509.23471: maps from a new model into the index of the old one.

    Example:
        >>> things, places = ("a cat", "rain", "the piano"), ("at home", "in town")
        >>> texts = [f"{thing} {place}, part {part}" for part in range(20) for thing in things for place in places]
        >>> index = model.encode(texts)[:, ::-1]  # stands for the embeddings by another model
        >>> mapped = align_into(model, texts, index)
        >>> query = mapped.encode("the piano in town, part 7")
        >>> texts[mapped.similarity(query, index.copy()).argmax()]
        'the piano in town, part 7'
    """
    with torch.inference_mode(False), torch.no_grad():
        _check(model)
        hide = None if show_progress_bar is None else not show_progress_bar
        parts, target = parts_of(model, texts, None, prompt_name), target_of(into, texts, prompt_name, batch_size, hide)
        start = without_readouts(starting_point(without_adapters(model), layers))
        full = Pipeline.of(start).full
        bytes_of_text = 4 * (full.num_layers * full.dim + target.dim)
        sample, total = drawn(parts, 1.0, bytes_of_text, _SAMPLE, stacklevel=3)
        warn_without_prompts(start, sample, stacklevel=2)
        if total < _FEW:
            told = (
                f"{total:,} texts are too few to align a model with another one well: with 1,000, about two thirds of the "
                "search scores are kept. Pass some 10,000, those of the index and texts like the queries."
            )
            warnings.warn(told, DataWarning, stacklevel=2)
        with torch.device("cpu"):  # whatever the user's default
            z = target.rows(sample, parts)
            every = EveryLayer.of(start, range(1, full.num_layers + 1), normalize=False)
            with tqdm(total=len(sample), desc="Embedding texts", unit=" texts", disable=hide) as bar:
                states = embedded(every, sample, "", batch_size, bar)
            count = min(_UNITS, len(sample) // _TEXTS_PER_UNIT) if units is None else positive_int(units, "units", least=0)
            hidden = Hidden(states[:, -1], count)
            depths = tqdm(range(1, full.num_layers + 1), desc="Fitting maps", unit=" depths", disable=hide)
            fitted = {depth: fit_into(states[:, depth - 1], z, hidden) for depth in depths}
        kept = _agreement(fitted, z)
        if kept[Size(full.num_layers, target.dim)] < _CHANCE:
            told = "The embeddings hardly relate to the texts that were left out. Are they of these texts, in their order?"
            warnings.warn(told, DataWarning, stacklevel=2)
        unit = bool(((z.norm(dim=1) - 1).abs() < _ROUNDING).all())
        made = placed_into(start, hidden.linear, {depth: each.readout for depth, each in fitted.items()}, unit=unit)
        return _declared(made, start, into, kept)


def _check(model: SentenceTransformer) -> None:
    """Refuse a model that cannot get maps into another space."""
    first = next(Pipeline.of(model).model.children())
    if isinstance(first, Router):
        raise ValueError(
            "The model starts with a Router. Map one route alone, as a SentenceTransformer of its modules: load(folder, "
            'route="query") returns it.'
        )
    if model.truncate_dim is not None:
        raise ValueError(
            f"The model has truncate_dim={model.truncate_dim}, but the maps read all of its dims. Set truncate_dim = None, "
            "and cut what `align_into` returns."
        )
    if known := getattr(model.config, INTO, None):
        raise ValueError(f"This model is in the space of {known} already. Pass the model that it was made of.")


def _agreement(fitted: Mapping[int, Fitted], z: Float[Tensor, "texts out"]) -> dict[Size, float]:
    """Measure how each size, on texts that were left out, agrees with the other model in searching its index."""
    dims = [*mrl_dims(z.shape[1]), z.shape[1]]
    kept: dict[Size, float] = {}
    for depth, each in fitted.items():
        index = z[each.held[:_COMPARED]]
        kept |= {Size(depth, dim): agreement_across(prefix(each.predicted[:_COMPARED], dim), index) for dim in dims}
    return kept


def _declared(
    made: SentenceTransformer, model: SentenceTransformer, into: Any, kept: Mapping[Size, float]
) -> SentenceTransformer:
    """Write the other model, the sizes, their agreement and a new name into the config and card."""
    inherit_card(made, model)
    made.model_card_data.add_tags("aligned")
    other = model_name(into) if isinstance(into, SentenceTransformer) else "other embeddings"
    full, transformer = Pipeline.of(made).full, Pipeline.of(made).transformer
    config: Any = transformer.model.config
    config.matryoshka_readouts = list(range(1, full.num_layers))
    expect_readouts(transformer, True)
    narrow = [dim for dim in declared_dims(into.config) if dim < full.dim] if isinstance(into, SentenceTransformer) else []
    declare_dims(config, [*narrow, full.dim])
    config.matryoshka_sizes = []  # those of this model's own dims no longer apply
    declare_training(config, sizes_product(range(1, full.num_layers + 1), [*narrow, full.dim]), ALIGN)
    declare_agreement(config, kept)
    setattr(config, INTO, other)
    if isinstance(into, SentenceTransformer):
        made.similarity_fn_name = into.similarity_fn_name
    name_apart(made, model, "into-" + re.sub(r"[^\w.-]+", "-", other.rpartition("/")[2]))
    return made
