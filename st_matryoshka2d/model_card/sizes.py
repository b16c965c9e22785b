"""What a saved model says of itself in its model card: the sizes that were trained, and what it is a cut of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from st_matryoshka2d.config_metadata import ALIGN, layers_by_dims, trained_sizes
from st_matryoshka2d.hub.checkpoint import Checkpoint
from st_matryoshka2d.model_card.section import called, card_of, usage, write_section
from st_matryoshka2d.sizes import Size

__all__ = ["add_sizes_to_model_card"]

_PAPERS = {
    "StarbucksLoss": "https://arxiv.org/abs/2410.13230",
    "TwoDMSELoss": "https://arxiv.org/abs/2402.14776v1",
    "EspressoLoss": "https://arxiv.org/abs/2402.14776",
}

_WIDTH = "Without that package, sentence-transformers cuts the width alone, at all layers: {}."
_NOT_NORMALISED = (
    "Embeddings of fewer dimensions are the first coordinates of the longer ones, not normalised again. Cosine similarity "
    "does not notice; for dot products pass `normalize_embeddings=True` to `encode`."
)
_ONE_SPACE = (
    "Embeddings of any two of its sizes can be compared, up to the dimensions of the narrower: what a few layers embed can "
    "search what the whole model has indexed."
)
_WITH_THE_WHOLE = (
    "Its embeddings can be compared with those of the whole model, and of its other sizes, up to the dimensions of the "
    "narrower."
)


def add_sizes_to_model_card(folder: str | os.PathLike[str]) -> None:
    """Add a section to the card of a saved model: the sizes that were trained, how each is loaded, what it is a cut of.

    The section "Layers and dimensions", of what `config.json` declares, goes into `README.md`, above the "Training Details"
    that sentence-transformers writes. A second call replaces it. Saving a newly trained or newly cut model writes a new
    card, so this comes after; a model that is loaded from the folder keeps the card, in `save_pretrained` and `push_to_hub`.

    The section calls the model what the card calls it. A new model is "sentence_transformers_model_id" there until it is
    given its name on the Hub, before it is saved: `model.model_card_data.set_model_id("you/name")`.

    Args:
        folder: Where the model was saved with `save_pretrained`.

    Raises:
        FileNotFoundError: There is no `README.md` in the folder.
        ValueError: The model declares neither trained sizes nor that it is a cut.

    Example:
        >>> from st_matryoshka2d import truncate
        >>> truncate(model, num_layers=3, dim=64).save_pretrained("3L-64d")
        >>> add_sizes_to_model_card("3L-64d")
        >>> from pathlib import Path
        >>> "the first 3 of 6 layers and the first 64 of 384" in Path("3L-64d/README.md").read_text(encoding="utf-8")
        True
    """
    readme = card_of(folder)
    write_section(readme, "trained sizes", _section(_config(Path(folder)), called(readme)))


def _config(folder: Path) -> dict[str, Any]:
    """What the first Transformer declares: that of the first module, or in a folder of it where a Router has several."""
    start = folder / Checkpoint(str(folder)).transformer
    for path in [start / "config.json", *sorted(start.glob("*/config.json"))]:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if trained_sizes(config) or "matryoshka_cut" in config:
            return dict(config)
    raise ValueError(
        f"The config.json of the model in {folder} has neither `matryoshka_sizes` nor `matryoshka_cut`. "
        "A model has them that was trained with a loss of st_matryoshka2d, or cut with its `truncate` or `load`."
    )


def _section(config: dict[str, Any], name: str) -> str:
    sizes = trained_sizes(config)
    parts = ["## Layers and dimensions"]
    if cut := config.get("matryoshka_cut"):
        parts.append(_origin(cut))
    if loss := config.get("matryoshka_loss"):
        parts.append(_training(loss, sizes, is_cut=bool(cut)))
    if sizes:
        parts.append(_table(sizes))
    if loss and loss.endswith(ALIGN) and "matryoshka_readouts" in config:
        parts.append(_WITH_THE_WHOLE if cut else _ONE_SPACE)
    if len(sizes) > 1:
        whole = Size.parse(cut["size"]) if cut else sizes[-1]
        parts += [usage(name, _middle(sizes, whole)), _WIDTH.format(_width(sizes, whole, name))]
    return "\n\n".join([*parts, _NOT_NORMALISED])


def _origin(cut: dict[str, str]) -> str:
    size, full, model = Size.parse(cut["size"]), Size.parse(cut["of"]), cut.get("model")
    whole = f"[{model}](https://huggingface.co/{model})" if model else "a larger model"
    first = f"first {size.num_layers}" if size.num_layers > 1 else "first"
    layers = f"the {first} of {full.num_layers} layers"
    return f"This model was cut from {whole}: {layers} and the first {size.dim} of {full.dim} dimensions."


def _training(loss: str, sizes: list[Size], is_cut: bool) -> str:
    paper = _PAPERS.get(loss.partition("(")[0])
    by = f"`{loss}`" + (f" ([paper]({paper}))" if paper else "")
    if not sizes:
        return f"The whole was trained by {by}, at no size that is within this one."
    if loss == ALIGN:
        if is_cut:
            return "Of the sizes for which the whole model was aligned, these are within it:"
        return "This model can be cut in layers and in dimensions. It was aligned for these sizes, without training:"
    what = "Of the sizes at which the whole was" if is_cut else "This model can be cut in layers and in dimensions. It was"
    end = ", these are within it:" if is_cut else " at these sizes:"
    return f"{what} trained by {by}{end}"


def _table(sizes: list[Size]) -> str:
    """A row for each run of layers with the same dims."""
    rows = [f"| {', '.join(map(str, layers))} | {', '.join(map(str, dims))} |" for layers, dims in layers_by_dims(sizes)]
    return "\n".join(["| Layers | Dimensions |", "| ---: | :--- |", *rows])


def _middle(sizes: list[Size], whole: Size) -> Size:
    smaller = [size for size in sizes if size != whole]
    layers = sorted({size.num_layers for size in smaller})
    chosen = [size for size in smaller if size.num_layers == layers[(len(layers) - 1) // 2]]
    return chosen[len(chosen) // 2]


def _width(sizes: list[Size], whole: Size, name: str) -> str:
    """How a dim is had at full depth, with one that was trained there, if there is one."""
    narrower = [size.dim for size in sizes if size.num_layers == whole.num_layers and size.dim < whole.dim]
    if narrower:
        return f'`SentenceTransformer("{name}", truncate_dim={narrower[-1]})`'
    return f"with `truncate_dim`. No fewer dimensions were trained with all {whole.num_layers} layers, so expect less"
