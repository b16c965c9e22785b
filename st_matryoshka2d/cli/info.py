"""`info`: describe a model and the sizes that it can be cut to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.hub import open_model, require_model
from st_matryoshka2d.cli.tables import table, table_of_sizes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from sentence_transformers import SentenceTransformer


def info(
    model: options.Model,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    revision: options.Revision = None,
    token: options.Token = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Show how deep and wide a model is, whether it can be cut, and a ladder of sizes."""
    require_model(model, revision, token)

    from st_matryoshka2d.config_metadata import declared_dims, trained_sizes
    from st_matryoshka2d.sizes import full_size

    loaded = open_model(model, device=device, trust_remote_code=trust_remote_code, revision=revision, token=token)
    size = full_size(loaded)
    ladder, refusal = _ladder(loaded)
    dims = declared_dims(loaded.config)
    sizes = trained_sizes(loaded.config)
    facts = {
        "model": model,
        "architecture": getattr(loaded.config, "model_type", "unknown"),
        "num_layers": size.num_layers,
        "dim": size.dim,
        "parameters": _parameters(loaded),
        "trained_dims": dims,
        "trained_sizes": list(map(str, sizes)),
        "similarity": str(loaded.similarity_fn_name),
        "max_seq_length": loaded.max_seq_length,
    }
    lines = [
        f"{model}: {facts['architecture']}, {size.num_layers} layers x {size.dim} dimensions",
        f"Parameters: {facts['parameters']:,}",
        f"Trained dims (matryoshka_dimensions): {', '.join(map(str, dims)) or 'none declared'}",
        f"Similarity: {facts['similarity']}. Longest text: {facts['max_seq_length']} tokens",
        f"Can be cut in depth: {'yes' if refusal is None else f'no. {refusal}'}",
    ]
    rungs = table(["ladder", "parameters"], [[rung["size"], f"{rung['parameters']:,}"] for rung in ladder])
    shown: list[RenderableType] = [*lines]
    if ladder:
        shown += ["", rungs]
    if sizes:
        shown += ["", "Trained sizes (matryoshka_sizes)", "", table_of_sizes(sizes)]
    return Answer(shown, {**facts, "can_be_cut": refusal is None, "refusal": refusal, "ladder": ladder}, as_json)


def _ladder(model: SentenceTransformer) -> tuple[list[dict[str, Any]], str | None]:
    """Return the sizes with their parameters, or why there are none. Each cut is verified on a few tokens."""
    from st_matryoshka2d import sizes_ladder
    from st_matryoshka2d.cut import cut_to

    try:
        cuts = {size: cut_to(model, size.num_layers, size.dim) for size in sizes_ladder(model)}
    except (TypeError, ValueError) as error:
        return [], str(error)
    return [
        {"size": str(size), "num_layers": size.num_layers, "dim": size.dim, "parameters": _parameters(cut)}
        for size, cut in cuts.items()
    ], None


def _parameters(model: SentenceTransformer) -> int:
    return sum(weight.numel() for weight in model.parameters())
