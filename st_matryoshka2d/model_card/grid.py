"""Scores of all sizes in the model card of a saved model."""

from __future__ import annotations

import json
import os
from pathlib import Path

from st_matryoshka2d.evaluation import pivots
from st_matryoshka2d.evaluation.grid import GridResult
from st_matryoshka2d.model_card.section import called, card_of, has_section, usage, write_section

__all__ = ["add_grid_to_model_card"]

FIGURE = "grid.png"

_SECTION = """## Sizes

This model can be cut: its first layers, with the first dimensions of what they give, are models too. \
Scores in percent ({metric}, {subject}):

{table}

![Scores by layers and dimensions]({figure})"""


def add_grid_to_model_card(folder: str | os.PathLike[str], grid: GridResult) -> None:
    """Add a section to the card of a saved model: scores by layers and dims, their heat map, and how to load a size.

    The section "Sizes" goes into `README.md`, above the "Evaluation" that sentence-transformers writes; the heat map goes
    beside it, as `grid.png`. How to load a size is left out where `add_sizes_to_model_card` has said it. A second call
    replaces the section. Saving the model again writes a new card, so this comes last, and what is uploaded is the folder:
    `HfApi().upload_folder(folder_path=folder, repo_id=...)`. `push_to_hub` would make a card of its own.

    The section calls the model what the card calls it. That is "sentence_transformers_model_id" until a new model gets its
    name on the Hub, before it is saved: `model.model_card_data.set_model_id("you/name")`.

    Args:
        folder: Where the model was saved with `save_pretrained`.
        grid: Scores of that model.

    Raises:
        FileNotFoundError: There is no `README.md` in the folder.
        ValueError: The grid has more layers than the model in the folder, so it is that of another one.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> model.save_pretrained("saved")
        >>> add_grid_to_model_card("saved", evaluate(model, task, sizes=["1L-16d"], show_progress_bar=False))
        >>> from pathlib import Path
        >>> "## Sizes" in Path("saved/README.md").read_text(encoding="utf-8")
        True
    """
    readme = card_of(folder)
    _check_depth(readme.with_name("config.json"), grid)
    grid.plot(readme.with_name(FIGURE))
    section = _section(grid)
    if not has_section(readme, "trained sizes"):
        section += f"\n\n{usage(called(readme), grid.sizes[len(grid.sizes) // 2])}"
    write_section(readme, "sizes", section)


def _check_depth(config: Path, grid: GridResult) -> None:
    there = json.loads(config.read_text(encoding="utf-8")).get("num_hidden_layers") if config.is_file() else None
    scored = max(size.num_layers for size in grid.sizes)
    if isinstance(there, int) and scored > there:
        raise ValueError(
            f"The grid has sizes of {scored} layers, the model in {config.parent} has {there}: give the grid of that model."
        )


def _section(grid: GridResult) -> str:
    subject = grid.tasks[0] if len(grid.tasks) == 1 else f"mean of {', '.join(grid.tasks[:-1])} and {grid.tasks[-1]}"
    metric = ", ".join([pivots.metric_name(grid.frame), *pivots.to_be_told(grid.frame)])
    return _SECTION.format(subject=subject, metric=metric, table=grid.to_markdown(), figure=FIGURE)
