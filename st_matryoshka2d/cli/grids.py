"""Names of grids side by side: those of their models, or of their files if the models' do not tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from st_matryoshka2d.grid.grid_result import GridResult


def named_apart(grids: Sequence[GridResult], files: Sequence[str | Path]) -> list[GridResult]:
    """Name grids by their files if some of their models have no name, or the same."""
    from st_matryoshka2d.grid.pivots import called

    if len({called(grid.model) for grid in grids} - {""}) == len(grids):
        return [*grids]
    names = [Path(file).stem if Path(file).is_file() else Path(file).name for file in files]
    return [grid.named(name) for grid, name in zip(grids, names, strict=True)]
