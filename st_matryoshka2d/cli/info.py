"""`info`: describe a model and the sizes that it can be cut to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from st_matryoshka2d.cli.checkpoints import Source
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.tables import table_of, table_of_agreement, table_of_sizes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from sentence_transformers import SentenceTransformer

    from st_matryoshka2d.sizes import Size


_ROTATED = "rotated by `align`; vectors of the model before it do not fit"
_KEPT = "kept by `align`; vectors of the model before it still fit"


def info(source: Source) -> Answer:
    """Show how deep and wide a model is, whether it can be cut, and a ladder of sizes.

    For example:

        st-matryoshka2d info all-MiniLM-L6-v2
    """
    source.require()

    from st_matryoshka2d.model.declared_agreement import INTO, agrees_with, declared_agreement
    from st_matryoshka2d.model.readout import is_rotated
    from st_matryoshka2d.model.sides import sides_of
    from st_matryoshka2d.model.trained_sizes import declared_dims, trained_sizes
    from st_matryoshka2d.sizes import full_size

    model = source.open()
    size, sizes, dims = full_size(model), trained_sizes(model.config), declared_dims(model.config)
    agreement = declared_agreement(model.config)
    ladder, refusal = _ladder(model)
    rotated = None if getattr(model.config, INTO, None) else is_rotated(model)
    sides = {name: (full_size(side), side) for name, side in sides_of(model).items()}
    data = {
        "model": source.model,
        "architecture": getattr(model.config, "model_type", "unknown"),
        **_costs(size, model),
        "sides": {name: {"size": str(each), **_costs(each, side)} for name, (each, side) in sides.items()},
        "trained_dims": dims,
        "trained_sizes": list(map(str, sizes)),
        "agreement": {str(each): value for each, value in agreement.items()},
        "rotated": rotated,
        "similarity": str(model.similarity_fn_name),
        "max_seq_length": model.max_seq_length,
        "can_be_cut": refusal is None,
        "refusal": refusal,
        "ladder": ladder,
    }
    shown: list[RenderableType] = [
        f"{source.model}: {data['architecture']}, {_depth(size, sides)} x {size.dim} dimensions",
        f"Parameters: {data['parameters']:,}",
        f"Trained dims (matryoshka_dimensions): {', '.join(map(str, dims)) or 'none declared'}",
        f"Similarity: {data['similarity']}. Longest text: {data['max_seq_length']} tokens",
        *([] if rotated is None else [f"Coordinates: {_ROTATED if rotated else _KEPT}"]),
        f"Can be cut in depth: {'yes' if refusal is None else f'no. {refusal}'}",
    ]
    if ladder:
        shown += ["", table_of(ladder, {"ladder": "{size}", "parameters": "{parameters:,}"})]
    if sizes:
        shown += ["", "Trained sizes (matryoshka_sizes)", "", table_of_sizes(sizes)]
    if agreement:
        shown += ["", *table_of_agreement(agreement, agrees_with(model.config))]
    return Answer(shown, data)


def _ladder(model: SentenceTransformer) -> tuple[list[dict[str, Any]], str | None]:
    """Return the sizes with their parameters, or why there are none. Each cut is verified on a few tokens."""
    from st_matryoshka2d import sizes_ladder
    from st_matryoshka2d.model.cut import cut_to, without_adapters

    try:
        model = without_adapters(model)
        cuts = {size: cut_to(model, size.num_layers, size.dim) for size in sizes_ladder(model)}
    except (TypeError, ValueError) as error:
        return [], str(error)
    return [{"size": str(size), **_costs(size, cut)} for size, cut in cuts.items()], None


def _depth(size: Size, sides: dict[str, tuple[Size, SentenceTransformer]]) -> str:
    """Write the number of layers, or that of each side of an asymmetric model."""
    if not sides:
        return _layers(size)
    return " and ".join(f"{_layers(each)} for a {name}" for name, (each, _) in sides.items())


def _layers(size: Size) -> str:
    if size.num_layers == 0:
        return "a token table"
    return "1 layer" if size.num_layers == 1 else f"{size.num_layers} layers"


def _costs(size: Size, cut: SentenceTransformer) -> dict[str, int]:
    parameters = sum(weight.numel() for weight in cut.parameters())
    return {"num_layers": size.num_layers, "dim": size.dim, "parameters": parameters}
