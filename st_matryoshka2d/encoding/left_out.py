"""One rule for messy tables: rows with an empty cell are left out, and one warning counts them and names the first few."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import pandas as pd

from st_matryoshka2d.encoding.check_texts import rows_of, strings
from st_matryoshka2d.errors import DataWarning, warn

Text = TypeVar("Text")

_NAMED = 5


def is_missing(cell: object) -> bool:
    """Tell whether a cell has no value: None, NaN or pandas' NA."""
    return cell is None or cell is pd.NA or (isinstance(cell, float) and math.isnan(cell))


def is_empty(cell: object) -> bool:
    """Tell whether a cell is missing or a blank text."""
    return is_missing(cell) or (isinstance(cell, str) and not cell.strip())


class LeftOut:
    """Counts the rows of a table that have an empty cell."""

    def __init__(self, what: str) -> None:
        self.what = what  # as in "pairs: 3 of 200 rows ..."
        self.total = 0
        self.rows: list[int] = []
        self._missing = False  # as None or NaN, to which readers of CSV files turn words such as "NA"

    def lacks(self, *cells: object) -> bool:
        """Count the next row, and tell whether it is left out."""
        row, self.total = self.total, self.total + 1
        if not any(map(is_empty, cells)):
            return False
        self.rows.append(row)
        self._missing |= any(map(is_missing, cells))
        return True

    def filled(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Yield the texts that are not left out."""
        return (text for text in texts if not self.lacks(text))

    def tell(self) -> None:
        """Warn if rows were left out."""
        if self.rows:
            warn(f"{self}", DataWarning)

    def __str__(self) -> str:
        """Return how many rows were left out, and the first few."""
        named = ", ".join(map(str, self.rows[:_NAMED])) + (", ..." if len(self.rows) > _NAMED else "")
        hint = ' To keep words such as "NA" and "null" of a CSV file, read it with keep_default_na=False.'
        return (
            f"{self.what}: {len(self.rows):,} of {self.total:,} rows have an empty cell and are left out: {named} (counted "
            f"from 0).{hint if self._missing else ''}"
        )


def filled_texts(texts: Any) -> list[str]:
    """Convert texts to a list without the empty ones, and warn of these."""
    left_out = LeftOut("texts")
    filled = strings(left_out.filled(rows_of(texts)))
    left_out.tell()
    return filled
