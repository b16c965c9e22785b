"""The section on layers and dimensions: the sizes, what they keep, how to load them, and what the model was cut from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from st_matryoshka2d.model.agreement_table import agreement_table
from st_matryoshka2d.model.declaration import ALIGN, Declaration
from st_matryoshka2d.model.layers import Layers
from st_matryoshka2d.model_card.readme import USAGE, first_module, markdown
from st_matryoshka2d.sizes import Size

_PAPERS = {
    "StarbucksLoss": "https://arxiv.org/abs/2410.13230",
    "TwoDMSELoss": "https://arxiv.org/abs/2402.14776v1",
    "EspressoLoss": "https://arxiv.org/abs/2402.14776v2",
}

_NOT_NORMALISED = (
    "Embeddings with fewer dimensions are the first coordinates of the full ones, and are not normalised again. This does "
    "not change cosine similarity; for dot products, pass `normalize_embeddings=True` to `encode`."
)
_ONE_SPACE = (
    "Embeddings of any two sizes can be compared, up to the dimensions of the narrower one: queries embedded by a few "
    "layers can search an index built by the whole model."
)
_WITH_THE_WHOLE = (
    "Its embeddings can be compared with those of the whole model and its other sizes, up to the dimensions of the narrower "
    "one."
)
_AGREEMENT = (
    "How well each size agrees with {0}, on texts without labels that were left out of the fit: the mean correlation "
    "of a text's similarities to the other texts, by the size and by {0}."
)
_HEALED = (
    "Its layers were refitted to stand in for those that left, on {texts:,} texts without labels. On texts left out, the "
    "mean cosine of its embeddings to those of the whole model is {after:.3f}; it was {before:.3f}. Both can be compared, "
    "up to the dimensions of this one."
)
_HEALED_OUTPUTS = (
    "Its layers were refitted to stand in for those that left, on {texts:,} texts without labels. On texts left out, its "
    "outputs agree with those of the whole model to {after:.3f}; it was {before:.3f}. That is the correlation of scores, or "
    "the mean cosine of embeddings."
)

_TABLE = """Its token table embeds queries without any layer:

```python
from st_matryoshka2d import load  # of the package st_matryoshka2d

table = load("{name}", num_layers=0)
vectors = table.encode_query(["..."])  # they search the documents that the whole model embedded
```"""


def sizes_section(folder: Path, name: str) -> str:
    """Return the section of a saved model; empty if the model declares nothing."""
    for declaration in declarations(folder):
        if declaration.sizes or declaration.origin or declaration.agreement:
            return _section(declaration, name)
    return ""


def declarations(folder: Path) -> Iterator[Declaration]:
    """Yield what the configs of a saved model declare."""
    _, start = first_module(folder)
    # In the folder of the first module, or below it for a Router.
    for path in [start / "config.json", *sorted(start.glob("*/config.json"))]:
        yield Declaration.of(json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})
    for path in [start / ADAPTER_CONFIG_NAME, *sorted(start.glob(f"*/{ADAPTER_CONFIG_NAME}"))]:
        if path.is_file():
            yield Declaration.of(json.loads(path.read_text(encoding="utf-8")).get("auto_mapping"))


def _section(declaration: Declaration, name: str) -> str:
    sizes, loss, cut = declaration.sizes, declaration.loss, declaration.origin
    has_dims = declaration.is_matryoshka or not cut  # a reranker and its like have none to choose from
    parts = ["## Layers and dimensions" if has_dims else "## Layers"]
    if cut:
        parts.append(_origin(cut, has_dims=has_dims))
    if declaration.healed:
        parts.append((_HEALED if has_dims else _HEALED_OUTPUTS).format(**declaration.healed))
    # or the whole, without its readouts
    is_cut = bool(cut) or declaration.readouts == []
    if loss:
        parts.append(_training(loss, sizes, is_cut))
    if sizes:
        groups = _layers_by_dims(sizes)
        rows = [f"| {', '.join(map(str, layers))} | {', '.join(map(str, dims))} |" for layers, dims in groups]
        parts.append("\n".join(["| Layers | Dimensions |", "| ---: | :--- |", *rows]))
    whole = Size.parse(cut["size"]) if cut else max(sizes, default=None)
    if whole and any(size.num_layers < whole.num_layers for size in sizes):
        total = max(whole.num_layers, 1 + len(declaration.layers or ()))  # the full size may not be trained
        parts.append(Layers.declared(declaration, total).told)
    if agreement := declaration.agreement:
        parts += [_AGREEMENT.format(declaration.agrees_with), markdown(*agreement_table(agreement))]
    if loss and loss.endswith(ALIGN) and declaration.readouts is not None:
        parts.append(_WITH_THE_WHOLE if is_cut else _ONE_SPACE)
    if 0 in (declaration.readouts or ()):
        parts.append(_TABLE.format(name=name))
    if whole and len(sizes) > 1:
        parts += _usage(sizes, whole, name)
    return "\n\n".join([*parts, _NOT_NORMALISED] if has_dims else parts)


def _layers_by_dims(sizes: Iterable[Size]) -> list[tuple[list[int], list[int]]]:
    """Group runs of layers with the same dims."""
    dims = {layer: [size.dim for size in group] for layer, group in groupby(sizes, key=lambda size: size.num_layers)}
    return [(list(layers), shared) for shared, layers in groupby(dims, key=dims.__getitem__)]


def _origin(cut: Mapping[str, Any], *, has_dims: bool) -> str:
    size, full, model = Size.parse(cut["size"]), Size.parse(cut["of"]), cut.get("model")
    whole = f"[{model}](https://huggingface.co/{model})" if model else "a larger model"
    if "layers" in cut:
        layers = f"layers {', '.join(map(str, cut['layers']))} of {full.num_layers}"
    else:
        layers = f"the first {f'{size.num_layers} ' if size.num_layers > 1 else ''}of {full.num_layers} layers"
    if not has_dims:
        return f"This model was cut from {whole}: {layers}."
    dims = f"all {full.dim}" if size.dim == full.dim else f"the first {size.dim} of {full.dim}"
    return f"This model was cut from {whole}: {layers} and {dims} dimensions."


def _training(loss: str, sizes: Sequence[Size], is_cut: bool) -> str:
    paper = _PAPERS.get(loss.partition("(")[0])
    by = f"`{loss}`" + (f" ([paper]({paper}))" if paper else "")
    if not sizes:
        return f"The whole model was trained with {by}, at no size within this cut."
    if is_cut and loss == ALIGN:
        return "Of the sizes that the whole model was aligned for, this cut has:"
    if is_cut:
        return f"The whole model was trained with {by}. Of its sizes, this cut has:"
    how = "aligned for these sizes, without training" if loss == ALIGN else f"trained with {by} at these sizes"
    return f"This model can be cut in layers and in dimensions. It was {how}:"


def _usage(sizes: Sequence[Size], whole: Size, name: str) -> list[str]:
    """Show how to load a size of medium depth, and to reduce the dims at full depth, if it can."""
    deepest = [size.dim for size in sizes if size.num_layers == whole.num_layers]
    narrower = [dim for dim in deepest if dim < whole.dim]
    call = f'`SentenceTransformer("{name}", truncate_dim={narrower[-1]})`' if narrower else ""
    layers = sorted({size.num_layers for size in sizes if size.num_layers < whole.num_layers})
    if not layers:
        return [f"With fewer dimensions: {call}."] if call else []
    chosen = [size for size in sizes if size.num_layers == layers[(len(layers) - 1) // 2]]
    untrained = f"No fewer dimensions were trained with all {whole.num_layers} layers: expect lower scores"
    how = call or f"with `truncate_dim`. {untrained}"
    plain = f"Plain sentence-transformers can only reduce the dimensions, with all layers: {how}."
    return [USAGE.format(name=name, size=chosen[len(chosen) // 2], layers=""), plain]
