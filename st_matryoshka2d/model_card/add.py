"""Add what a model can be cut to, and its scores, to its card."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model_card.onnx_section import begin_card, is_exported, onnx_section
from st_matryoshka2d.model_card.readme import card_of, describe_queries, write_section
from st_matryoshka2d.model_card.sides_section import sides_section
from st_matryoshka2d.model_card.sizes_section import declarations, sizes_section
from st_matryoshka2d.model_card.table_section import table_section
from st_matryoshka2d.model_card.vocabulary_section import vocabulary_section

if TYPE_CHECKING:
    from st_matryoshka2d.grid.grid_result import GridResult


def add_to_model_card(folder: str | os.PathLike[str], grid: GridResult | None = None) -> None:
    """Add to the card of a saved model which sizes it has, what they keep, and perhaps their scores.

    `README.md` gets a section "Layers and dimensions", or "Queries and documents" for an
    `asymmetric` model, or "Token table" for the cut of 0 layers; with a grid a section "Sizes" with
    a table, and a heat map `grid.png`; and with a smaller vocabulary a section "Vocabulary" with
    what it was made of, and what it costs; and with a graph of `export_onnx` in the folder a section
    "ONNX". A folder that has such a graph alone gets a card of it.
    A second call replaces them. Saving a model writes a new card, so call this after saving, then
    upload the folder. To show the model's name on the Hub, set it before saving:
    `model.model_card_data.set_model_id("you/name")`.

    Args:
        folder: Where the model was saved with `save_pretrained`, or exported with `export_onnx`.
        grid: Scores of that model; None for none.

    Raises:
        FileNotFoundError: There is no `README.md` in the folder, nor a graph.
        UsageError: Nothing says what the model can be cut to, or what it was cut from, and no grid
            is given; or the grid has more layers than the model, so it belongs to another.

    Example:
        >>> from st_matryoshka2d import evaluate, truncate
        >>> cut = truncate(model, num_layers=3, dim=64)
        >>> cut.save_pretrained("3L-64d")
        >>> grid = evaluate(cut, task, dims=[16, 64], show_progress_bar=False)
        >>> add_to_model_card("3L-64d", grid)
        >>> from pathlib import Path
        >>> card = Path("3L-64d/README.md").read_text(encoding="utf-8")
        >>> "layers 1, 5, 6 of 6 and the first 64 of 384" in card, "## Sizes" in card
        (True, True)
    """
    if is_exported(Path(folder)) and not Path(folder, "README.md").exists():
        begin_card(Path(folder))
    readme, name = card_of(folder)
    place = readme.parent
    table = table_section(place, name)
    sizes = table or sides_section(place, name) or sizes_section(place, name)
    vocabulary = next((each.vocabulary for each in declarations(place) if each.vocabulary), None)
    graph = onnx_section(place, name)
    if not (sizes or graph) and grid is None and vocabulary is None:
        raise UsageError(
            f"There is nothing to add: the model in {folder} is a plain one, and no config says what it can be cut to or "
            "was cut from. Pass a grid of its scores."
        )
    if grid is not None:
        # needs pandas, as grids do
        from st_matryoshka2d.model_card.grid_section import grid_section

        write_section(readme, "sizes", grid_section(readme, grid.named(name), with_usage="load(" not in sizes))
    if table:
        describe_queries(readme)
    if sizes:
        write_section(readme, "trained sizes", sizes)
    if vocabulary:
        write_section(readme, "vocabulary", vocabulary_section(vocabulary))
    if graph:
        write_section(readme, "onnx", graph)
