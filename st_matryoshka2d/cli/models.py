"""Open and save models, and open grids or models in their place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_matryoshka2d import GridResult


def save_model(model: SentenceTransformer, folder: Path) -> None:
    """Save a model with a card of its sizes."""
    from st_matryoshka2d import add_to_model_card

    model.save_pretrained(str(folder))
    add_to_model_card(folder)
    written(folder)


def open_grid(name: str) -> GridResult:
    """Read a grid, or make one of what `align` measured of a model."""
    from st_matryoshka2d import GridResult, load

    if Path(name).is_file():
        return GridResult.load(name)
    return GridResult.from_agreement(load(name, device="cpu"))


def written(path: Path) -> None:
    """Say where a result is."""
    typer.echo(f"Written: {path}")
