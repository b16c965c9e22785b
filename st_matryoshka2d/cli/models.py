"""Save models, and read grids or what a model has in place of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from st_matryoshka2d.cli.options import is_grid_or_model

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_matryoshka2d import GridResult


def save_model(model: SentenceTransformer, folder: Path) -> None:
    """Save a model, with a card of its sizes if it has other sizes, or was cut."""
    from st_matryoshka2d import add_to_model_card

    model.save_pretrained(str(folder))
    if any(getattr(model.config, f"matryoshka_{key}", None) for key in ("sizes", "cut")):
        add_to_model_card(folder)
    print_agreement(model)
    written(folder)


def print_agreement(model: SentenceTransformer) -> None:
    """Print how well each size agrees with the whole model, if that was measured."""
    from st_matryoshka2d import GridResult

    if getattr(model.config, "matryoshka_agreement", None):
        typer.echo(f"\n{GridResult.from_agreement(model)}")


def open_grid(name: str) -> GridResult:
    """Read a grid, or make one of what `align` measured of a model."""
    from st_matryoshka2d import GridResult, load

    is_grid_or_model(name)
    if Path(name).is_file():
        return GridResult.load(name)
    return GridResult.from_agreement(load(name, device="cpu"))


def written(path: Path) -> None:
    """Say where a result is."""
    typer.echo(f"Written: {path}")
