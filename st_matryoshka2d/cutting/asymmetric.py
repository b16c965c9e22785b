"""Put two sizes of a model into one checkpoint: a small one for queries, a large one for documents."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from sentence_transformers import SentenceTransformer

from st_matryoshka2d.cutting.cut import cut_to
from st_matryoshka2d.cutting.untrained import warn_if_untrained
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.copies import share_memory
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.identity import name_apart
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout, require_table
from st_matryoshka2d.model.sides import DOCUMENT, QUERY, ends_with_normalize, is_asymmetric, joined, side_of, with_modules
from st_matryoshka2d.sizes import Size, full_size, layered, resolve_size, within

ASYMMETRIC = "asymmetric"  # tag of a card


def asymmetric(
    model: SentenceTransformer, query: Size | str | int | SentenceTransformer, document: Size | str | int | None = None
) -> SentenceTransformer:
    """Put two sizes of a model into one: `encode_query` runs the small one, `encode_document` the large one.

    The result is a plain `SentenceTransformer` that starts with a `Router`: once saved, it loads
    anywhere without this package, and mteb and others that call `encode_query` and
    `encode_document` need no setting. `encode` without a `task` embeds documents. It shares its
    weights with the model; a saved one has those of both sides.

    Both sides return the same dims, by `truncate_dim`. If the model compares unit vectors by dot
    product, the result compares them by cosine, which is the same and stays right if fewer dims are
    kept.

    Args:
        model: A model that `align` returned, with all its readouts; for a token table, one that
            `fit_queries` returned.
        query: Size of the query encoder, such as `"3L-384d"`. An integer is a number of layers; 0
            is the token table of `fit_queries`. Or an encoder, such as a cut that was healed, or
            trained to return the embeddings of the whole model.
        document: Size of the document encoder; None for all layers. If the dims differ, both get
            the fewer.

    Returns:
        A model whose name in mteb has both sizes. To load one side of a saved one, use
        `load(folder, route="query")`.

    Raises:
        TypeError: `model` is not a `SentenceTransformer`, or a size is neither a size nor an
            integer.
        ValueError: A size exceeds the model; the model is not aligned for these depths, so that
            their embeddings cannot be compared; its readouts were not loaded; or an encoder of
            queries has another width than the model.

    Warns:
        DataWarning: As for `truncate`.

    Example:
        >>> from st_matryoshka2d import align
        >>> aligned = align(model, ["a cat sat", "it rains", "how to cook rice"], layers="first")
        >>> small_queries = asymmetric(aligned, query="3L-128d")
        >>> small_queries.encode_query("a cat").shape, small_queries.encode_document("a cat sat").shape
        ((128,), (128,))
        >>> small_queries.save_pretrained("saved")
    """
    if is_asymmetric(model):
        raise UsageError("This model is asymmetric already. Join two sizes of the aligned model that it was made of.")
    pipeline = Pipeline.of(model)
    given = query if isinstance(query, SentenceTransformer) else None
    sides = _cuts(pipeline, query, document) if given is None else _with_encoder(pipeline, given, document)
    both = joined(model, **sides)
    if both.similarity_fn_name == "dot" and all(map(ends_with_normalize, sides.values())):
        both.similarity_fn_name = "cosine"
    both.model_card_data.tags = [*dict.fromkeys([*both.model_card_data.tags, ASYMMETRIC])]
    sizes = {name: full_size(side) for name, side in sides.items()}
    for name, size in sizes.items():
        if name == DOCUMENT or given is None:
            warn_if_untrained(pipeline.declaration, size, pipeline.full)
    name_apart(both, model, "-".join(f"{size}-{name}" for name, size in sizes.items()))
    return both


def _cuts(pipeline: Pipeline, query: Any, document: Any) -> dict[str, SentenceTransformer]:
    """Cut both sides out of a model."""
    full = pipeline.full
    asked = {QUERY: _asked(query), DOCUMENT: _asked(document)}
    depths = {name: full.num_layers if depth is None else depth for name, (depth, _) in asked.items()}
    within(depths[QUERY], full.num_layers, "num_layers", least=0)
    within(depths[DOCUMENT], full.num_layers, "num_layers")
    width = min([within(dim, full.dim, "dim") for _, dim in asked.values() if dim is not None], default=None)
    _require_one_space(pipeline, depths)
    sides = {name: _alone(side_of(cut_to(pipeline, depth, width), name)) for name, depth in depths.items()}
    if len(set(depths.values())) == 1 and not pipeline.has_router:
        sides[QUERY] = sides[DOCUMENT]  # saved once
    return sides


def _with_encoder(pipeline: Pipeline, encoder: SentenceTransformer, document: Any) -> dict[str, SentenceTransformer]:
    """Cut the side of documents out of a model, for an encoder of queries."""
    depth, dim = _asked(document)
    full = pipeline.full
    copies = {name: share_memory(part) for name, part in encoder.named_children()}
    alone = with_modules(encoder, copies, SentenceTransformer)
    whole = with_modules(pipeline.model, dict(pipeline.model.named_children()), SentenceTransformer)  # no `truncate_dim`
    width, of_model = alone.get_embedding_dimension(), whole.get_embedding_dimension()
    if width not in (of_model, full.dim):
        raise UsageError(
            f"The encoder of queries returns {width} dimensions and the model {of_model}, so they cannot be compared. Train "
            "a cut of this model: truncate(model, num_layers=...)."
        )
    widths = [width for width in (encoder.truncate_dim, pipeline.model.truncate_dim, dim) if width is not None]
    alone.truncate_dim = min(widths, default=None)
    return {
        QUERY: _alone(side_of(alone, QUERY)),
        DOCUMENT: _alone(side_of(cut_to(pipeline, depth, alone.truncate_dim), DOCUMENT)),
    }


def _asked(size: object) -> tuple[int | None, int | None]:
    """Return layers and dims of a side; a number is one of layers, with all dims."""
    if isinstance(size, Integral):
        return resolve_size(None, size, None)
    return resolve_size(size, None, None)


def _require_one_space(pipeline: Pipeline, depths: Mapping[str, int]) -> None:
    """Refuse two depths whose embeddings cannot be compared."""
    if len(set(depths.values())) == 1:
        return
    if depths[QUERY] == 0:
        require_table(pipeline.model)
    full, readouts = pipeline.full.num_layers, pipeline.declaration.readouts
    if not {*depths.values()} <= {full, *(readouts or [])}:
        state = "It is not aligned" if readouts is None else f"It has readouts for {readouts or 'no other'} layers"
        raise UsageError(
            f"Embeddings of {depths[QUERY]} and of {depths[DOCUMENT]} layers of this model are not in one space, so queries "
            f"would not find documents. {state}. First align the whole model, with `align`. In Python, a cut may be "
            f"near enough: query=truncate(model, num_layers={depths[QUERY]})."
        )


def _alone(side: SentenceTransformer) -> SentenceTransformer:
    """Take what other depths need out of a side, so that any program can load it."""
    modules = {name: part.plain() if isinstance(part, Readout) else part for name, part in side.named_children()}
    alone = with_modules(side, modules, SentenceTransformer)
    alone.truncate_dim = side.truncate_dim
    if (config := alone.config) is not None:
        Declaration.of(config).of_depth(layered(config).num_hidden_layers).write(config)
    return alone
