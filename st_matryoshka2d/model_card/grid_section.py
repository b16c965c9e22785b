"""The section on scores: a table by layers and dims, their heat map, and how to load a size."""

from __future__ import annotations

import json
import os

from st_matryoshka2d.grid import pivots
from st_matryoshka2d.grid.grid_result import GridResult
from st_matryoshka2d.model_card.readme import BEGIN, USAGE, card_of, markdown, write_section

_SCORES = """## Sizes

This model can be cut: fewer layers, with the first dimensions of their embeddings, are models too. \
Scores in percent: {metric}, {subject}.

{table}

![Scores by layers and dimensions](grid.png)"""


def add_grid_to_model_card(folder: str | os.PathLike[str], grid: GridResult) -> None:
    """Add a section to the card of a saved model: scores by layers and dims, their heat map, and how to load a size.

    The section "Sizes" goes into `README.md`, and the heat map beside it, as `grid.png`; a second call replaces them. Call
    this last, as `add_sizes_to_model_card`, and upload the folder: `HfApi().upload_folder(folder_path=folder, repo_id=...)`.

    Args:
        folder: Where the model was saved with `save_pretrained`.
        grid: Scores of that model.

    Raises:
        FileNotFoundError: There is no `README.md` in the folder.
        ValueError: The grid has more layers than the model in the folder, so it belongs to another model.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> model.save_pretrained("saved")
        >>> add_grid_to_model_card("saved", evaluate(model, task, sizes=["1L-16d"], show_progress_bar=False))
        >>> from pathlib import Path
        >>> "## Sizes" in Path("saved/README.md").read_text(encoding="utf-8")
        True
    """
    readme, name = card_of(folder)
    config = readme.with_name("config.json")
    depth = json.loads(config.read_text(encoding="utf-8")).get("num_hidden_layers") if config.is_file() else None
    scored = max(size.num_layers for size in grid.sizes)
    if isinstance(depth, int) and scored > depth:
        raise ValueError(f"The grid has {scored} layers, the model in {folder} has {depth}: pass the grid of that model.")
    grid.plot(readme.with_name("grid.png"))
    tasks = _counted(grid)
    subject = tasks[0] if len(tasks) == 1 else f"mean of {', '.join(tasks[:-1])} and {tasks[-1]}"
    metric = ", ".join([pivots.metric_name(grid.frame), *pivots.shown_labels(grid.frame)])
    section = _SCORES.format(subject=subject, metric=metric, table=_table(grid))
    if BEGIN.format("trained sizes") not in readme.read_text(encoding="utf-8"):  # which shows it already
        section += f"\n\n{USAGE.format(name=name, size=grid.sizes[len(grid.sizes) // 2])}"
    write_section(readme, "sizes", section)


def _table(grid: GridResult) -> str:
    cells = pivots.percent(grid.frame)
    table = markdown(["layers / dim", *map(str, cells)], [[str(depth), *row] for depth, row in cells.iterrows()])
    return "\n\n".join([table, *pivots.notes(grid.frame)])


def _counted(grid: GridResult) -> list[str]:
    """Name the tasks, each with its number of queries or pairs where the grid has it."""
    parts = grid.items.drop_duplicates(["task", "split", "subset"])
    counts = parts["values"].map(len).groupby(parts["task"]).sum()
    return [f"{task} (n = {counts[task]:,})" if task in counts else task for task in grid.tasks]
