"""The section on scores: a table by layers and dims, and their heat map."""

from __future__ import annotations

import json
from pathlib import Path

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.grid import pivots
from st_matryoshka2d.grid.grid_result import GridResult
from st_matryoshka2d.model.declaration import written_depth
from st_matryoshka2d.model_card.readme import USAGE, markdown

_SCORES = """## Sizes

This model can be cut: fewer layers, with the first dimensions of their embeddings, are models too. \
Scores in percent: {metric}, {subject}.

{table}

![Scores by layers and dimensions](grid.png)"""


def grid_section(readme: Path, grid: GridResult, with_usage: bool) -> str:
    """Return the section on scores, and draw their heat map beside a card; refuse the grid of a deeper model."""
    config = readme.with_name("config.json")
    depth = written_depth(json.loads(config.read_text(encoding="utf-8"))) if config.is_file() else None
    scored = max(size.num_layers for size in grid.sizes)
    if isinstance(depth, int) and scored > depth:
        raise UsageError(
            f"The grid has {scored} layers, the model in {readme.parent} has {depth}: pass the grid of that model."
        )
    grid.plot(readme.with_name("grid.png"))
    tasks = _counted(grid)
    subject = tasks[0] if len(tasks) == 1 else f"mean of {', '.join(tasks[:-1])} and {tasks[-1]}"
    metric = ", ".join([pivots.metric_name(grid.frame), *pivots.shown_labels(grid.frame)])
    section = _SCORES.format(subject=subject, metric=metric, table=_table(grid))
    kept, size = pivots.layers_by_depth(grid.layers, grid.sizes, grid.full_size), grid.sizes[len(grid.sizes) // 2]
    if with_usage:
        layers = f", layers={kept[size.num_layers]!r}" if size.num_layers in kept else ""
        section += f"\n\n{USAGE.format(name=grid.model, size=size, layers=layers)}"
    return "\n\n".join([section, *pivots.layers_note(kept)])


def _table(grid: GridResult) -> str:
    cells = pivots.percent(grid.frame)
    head = [f"{pivots.rows_name(grid.frame)} / dim", *map(str, cells)]
    table = markdown(head, [[str(depth), *row] for depth, row in cells.iterrows()])
    return "\n\n".join([table, *pivots.notes(grid.frame)])


def _counted(grid: GridResult) -> list[str]:
    """Name the tasks, each with its number of queries or pairs where the grid has it."""
    parts = grid.items.drop_duplicates(["task", "split", "subset"])
    counts = parts["values"].map(len).groupby(parts["task"]).sum()
    return [f"{task} (n = {counts[task]:,})" if task in counts else task for task in grid.tasks]
