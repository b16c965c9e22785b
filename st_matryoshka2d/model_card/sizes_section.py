"""The sections on sizes: what a model can be cut to, what it was cut from, and the scores of a grid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.agreement_table import agreement_table
from st_matryoshka2d.model.declaration import ALIGN, Declaration, written_depth
from st_matryoshka2d.model.layers import Layers
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from st_matryoshka2d.grid.grid_result import GridResult

_USAGE = """```python
from st_matryoshka2d import load  # of the package st_matryoshka2d

small = load("{name}", num_layers={size.num_layers}, dim={size.dim}{layers})  # reads those layers only
small.save_pretrained("{size}")  # a plain checkpoint: it loads without st_matryoshka2d
```"""

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
_DENSE = "A `Dense` module follows pooling. Programs that stop at pooling leave it out, and return other embeddings."
_HEALED_OUTPUTS = (
    "Its layers were refitted to stand in for those that left, on {texts:,} texts without labels. On texts left out, its "
    "outputs agree with those of the whole model to {after:.3f}; it was {before:.3f}. That is the correlation of scores, or "
    "the mean cosine of embeddings."
)

_SCORES = """## Sizes

{intro}Scores in percent: {metric}, {subject}.

{table}"""
_CAN_BE_CUT = "This model can be cut: fewer layers, with the first dimensions of their embeddings, are models too. "
_PICTURE = "![Scores by layers and dimensions](grid.png)"

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
            return _section(declaration, name, has_dense=any(kind.endswith(".Dense") for kind, _ in _modules(folder)))
    return ""


def declarations(folder: Path) -> Iterator[Declaration]:
    """Yield what the configs of a saved model declare."""
    _, start = first_module(folder)
    # In the folder of the first module, or below it for a Router.
    for path in [start / "config.json", *sorted(start.glob("*/config.json"))]:
        yield Declaration.of(read_json(path))
    for path in [start / ADAPTER_CONFIG_NAME, *sorted(start.glob(f"*/{ADAPTER_CONFIG_NAME}"))]:
        yield Declaration.of(read_json(path).get("auto_mapping"))


def first_module(folder: Path) -> tuple[str, Path]:
    """Return the type and the folder of the first module of a saved model."""
    return _modules(folder)[0]


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the types and the folders of all modules of a saved model; a plain network has no type."""
    listed = folder / "modules.json"
    if not listed.is_file():
        return [("", folder)]
    return [(module["type"], folder / module["path"]) for module in json.loads(listed.read_text(encoding="utf-8"))]


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of settings; none of them if there is no such file."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of numbers."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---:"] * len(head), *rows))


def origin(declaration: Declaration, subject: str = "This model") -> list[str]:
    """Say what a model was cut from, and how it was healed."""
    cut, healed = declaration.origin, declaration.healed
    has_dims = declaration.is_matryoshka or not cut  # a reranker and its like have none to choose from
    parts = [f"{subject} was cut from {_origin(cut, has_dims=has_dims)}"] if cut else []
    return [*parts, (_HEALED if has_dims else _HEALED_OUTPUTS).format(**healed)] if healed else parts


def _section(declaration: Declaration, name: str, *, has_dense: bool) -> str:
    sizes, loss, cut = declaration.sizes, declaration.loss, declaration.origin
    has_dims = declaration.is_matryoshka or not cut
    parts = ["## Layers and dimensions" if has_dims else "## Layers", *origin(declaration)]
    if declaration.healed and has_dense:
        parts.append(_DENSE)
    # or the whole, without its readouts
    is_cut = bool(cut) or declaration.readouts == []
    if loss:
        parts.append(_training(loss, sizes, is_cut))
    if sizes:
        groups = _layers_by_dims(sizes)
        parts.append(markdown(["Layers", "Dimensions"], ([", ".join(map(str, part)) for part in group] for group in groups)))
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
        return f"{whole}: {layers}."
    dims = f"all {full.dim}" if size.dim == full.dim else f"the first {size.dim} of {full.dim}"
    return f"{whole}: {layers} and {dims} dimensions."


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
    return [_USAGE.format(name=name, size=chosen[len(chosen) // 2], layers=""), plain]


def grid_section(readme: Path, grid: GridResult, with_usage: bool) -> str:
    """Return the section on scores, and draw their heat map beside a card; refuse the grid of a deeper model."""
    from st_matryoshka2d.grid import pivots  # needs pandas, as grids do

    depth = written_depth(read_json(readme.with_name("config.json")))
    scored = max(size.num_layers for size in grid.sizes)
    if isinstance(depth, int) and scored > depth:
        raise UsageError(
            f"The grid has {scored} layers, the model in {readme.parent} has {depth}: pass the grid of that model."
        )
    grid.plot(readme.with_name("grid.png"))
    counts = pivots.example_counts(grid.items)
    tasks = [f"{task} (n = {counts[task]:,})" if task in counts else task for task in grid.tasks]
    subject = tasks[0] if len(tasks) == 1 else f"mean of {', '.join(tasks[:-1])} and {tasks[-1]}"
    cells = pivots.percent(grid.frame)
    head = [f"{pivots.rows_name(grid.frame)} / dim", *map(str, cells)]
    table = markdown(head, ([str(layers), *row] for layers, row in cells.iterrows()))
    intro = _CAN_BE_CUT if with_usage else ""
    scores = _SCORES.format(intro=intro, subject=subject, metric=pivots.label(grid.frame), table=table)
    kept, size = pivots.layers_by_depth(grid.layers, grid.sizes, grid.full_size), grid.sizes[len(grid.sizes) // 2]
    layers = f", layers={kept[size.num_layers]!r}" if size.num_layers in kept else ""
    usage = [_USAGE.format(name=grid.model, size=size, layers=layers)] if with_usage else []
    return "\n\n".join([scores, *pivots.notes(grid.frame), _PICTURE, *usage, *pivots.layers_note(kept)])
