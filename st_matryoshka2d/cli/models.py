"""Save models, and read grids or what a model has in place of one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from st_matryoshka2d import UsageError
from st_matryoshka2d.cli.options import is_grid_or_model

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_matryoshka2d import GridResult


def save_model(model: SentenceTransformer, folder: Path) -> None:
    """Save a model, with a card of its sizes if there is something to say of them."""
    from st_matryoshka2d import add_to_model_card

    model.save_pretrained(str(folder))
    with suppress(UsageError):  # at its full size there is nothing to add
        add_to_model_card(folder)
    written(folder)


def print_agreement(model: SentenceTransformer) -> None:
    """Print how well each size agrees with the whole model, if that was measured, and what else was done to it."""
    import pandas as pd

    from st_matryoshka2d import GridResult
    from st_matryoshka2d.model.declaration import Declaration

    with suppress(UsageError):  # it was not measured
        typer.echo(f"\n{GridResult.from_agreement(model)}")
    declared = Declaration.of(model.config)
    if healed := declared.healed:
        cosines = f"{healed['before']:.3f} before, {healed['after']:.3f} after"
        measure = "Correlation of scores with" if hasattr(model, "predict") else "Cosine to"
        typer.echo(f"\nHealed on {healed['texts']:,} texts. {measure} the whole model, on texts left out: {cosines}.")
    if vocabulary := declared.vocabulary:
        typer.echo(f"\n{vocabulary['rows']:,} of {vocabulary['of']:,} tokens. On texts left out of a first vocabulary:")
        costs = pd.DataFrame({name: vocabulary[name] for name in ("texts", "exact", "cosine")})
        typer.echo(costs.to_string(na_rep="", formatters={"exact": "{:.1%}".format, "cosine": "{:.3f}".format}))


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
