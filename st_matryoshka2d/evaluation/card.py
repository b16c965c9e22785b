"""Scores of all sizes in the model card of a saved model."""

from __future__ import annotations

import os
import re
from pathlib import Path

from st_matryoshka2d.evaluation.grid import pivots
from st_matryoshka2d.evaluation.grid.files import replace_file
from st_matryoshka2d.evaluation.grid.result import GridResult

__all__ = ["add_grid_to_model_card"]

FIGURE = "grid.png"

_BEGIN, _END = "<!-- sizes: begin -->", "<!-- sizes: end -->"
_OURS = re.compile(f"{_BEGIN}.*?{_END}", flags=re.DOTALL)
# Where readers look for scores, in the cards that sentence-transformers writes.
_BEFORE = re.compile(r"^## (Evaluation|Training Details)$", flags=re.MULTILINE)
_LOADED = re.compile(r"SentenceTransformer\(\"([^\"]+)\"")

_SECTION = """{begin}
## Sizes

This model can be cut: its first layers, with the first dimensions of what they give, are models too. \
Scores in percent ({metric}, {subject}):

{table}

![Scores by layers and dimensions]({figure})

```python
from st_matryoshka2d import load  # pip install st_matryoshka2d

small = load("{name}", num_layers={size.num_layers}, dim={size.dim})
small.save_pretrained("{size}")  # a plain checkpoint: it loads without st_matryoshka2d
```
{end}"""


def add_grid_to_model_card(folder: str | os.PathLike[str], grid: GridResult) -> None:
    """Add a section to the card of a saved model: scores by layers and dims, their heat map, and how to load a size.

    The section "Sizes" goes into `README.md`, above the "Evaluation" that sentence-transformers writes; the heat map goes
    beside it, as `grid.png`. A second call replaces the section. Saving the model again writes a new card, so this comes
    last, and what is uploaded is the folder: `HfApi().upload_folder(folder_path=folder, repo_id=...)`. `push_to_hub` would
    make a card of its own.

    Args:
        folder: Where the model was saved with `save_pretrained`.
        grid: Scores of that model.

    Raises:
        FileNotFoundError: There is no `README.md` in the folder.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> model.save_pretrained("saved")
        >>> add_grid_to_model_card("saved", evaluate(model, task, sizes=["1L-16d"], show_progress_bar=False))
        >>> from pathlib import Path
        >>> "## Sizes" in Path("saved/README.md").read_text(encoding="utf-8")
        True
    """
    readme = Path(folder) / "README.md"
    if not readme.is_file():
        raise FileNotFoundError(f"There is no model card {readme}; save the model there first: model.save_pretrained(...).")
    card = readme.read_text(encoding="utf-8")
    grid.plot(readme.with_name(FIGURE))
    changed = _with_section(card, _section(grid, _name(card, readme)))
    replace_file(readme, lambda part: part.write_text(changed, encoding="utf-8"))


def _section(grid: GridResult, name: str) -> str:
    subject = grid.tasks[0] if len(grid.tasks) == 1 else f"mean of {', '.join(grid.tasks[:-1])} and {grid.tasks[-1]}"
    return _SECTION.format(
        begin=_BEGIN,
        end=_END,
        subject=subject,
        metric=pivots.metric_name(grid.frame),
        table=grid.to_markdown(),
        figure=FIGURE,
        name=name,
        size=grid.sizes[len(grid.sizes) // 2],
    )


def _name(card: str, readme: Path) -> str:
    """What the card itself calls the model where it says how to load it."""
    told = _LOADED.search(card)
    return told[1] if told else readme.resolve().parent.name


def _with_section(card: str, section: str) -> str:
    if _OURS.search(card):
        return _OURS.sub(lambda _: section, card)
    heading = _BEFORE.search(card)
    if heading is None:
        return f"{card.rstrip()}\n\n{section}\n"
    return f"{card[: heading.start()]}{section}\n\n{card[heading.start() :]}"
