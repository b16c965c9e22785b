"""Single values of a table: what a text, a score, an id is; anything else is refused with its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import pandas as pd

from st_matryoshka2d.texts import check_text

__all__ = ["first_of", "identifier", "is_missing", "number", "relevance", "text"]


def is_missing(value: object) -> bool:
    """Whether a cell is empty: None, NaN or pandas' NA."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def text(value: Any, where: str) -> str:
    """A text that says something.

    Args:
        value: Cell of the table.
        where: Its place, for the message.

    Raises:
        ValueError: Missing, not a `str`, nothing but white space, or with half of a surrogate pair.

    Example:
        >>> text(None, "pairs, row 3, sentence2")
        Traceback (most recent call last):
        ...
        ValueError: pairs, row 3, sentence2: expected a text that is not empty, got None. Fill it in or drop the row.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: expected a text that is not empty, got {value!r}. Fill it in or drop the row.")
    check_text(value, where)
    return value


def number(value: Any, where: str) -> float:
    """A finite number.

    Args:
        value: Cell of the table.
        where: Its place, for the message.

    Raises:
        ValueError: Missing, infinite, or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{where}: expected a finite number, got {value!r}. Mend it or drop the row.")
    return float(value)


def identifier(value: Any, where: str) -> str:
    """An id: a text, or an integer, which becomes a text.

    Args:
        value: Cell of the table.
        where: Its place, for the message.

    Raises:
        ValueError: Anything else; a float is no id, as `1.0` and `1` would be two.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: an id is a text that is not empty or an integer, got {value!r}.")
    check_text(value, where)
    return value


def relevance(value: Any, where: str) -> int:
    """How relevant a document is: 0, 1, 2, ...

    Args:
        value: Cell of the table.
        where: Its place, for the message.

    Raises:
        ValueError: Negative, or not a whole number.
    """
    grade = float(value) if isinstance(value, Real) else math.nan
    if not grade.is_integer() or grade < 0:
        raise ValueError(f"{where}: relevance is a whole number, 0 (not relevant) or more, got {value!r}.")
    return int(grade)


def first_of(names: Sequence[object], limit: int = 3) -> str:
    """The first few names, for a message.

    Args:
        names: All of them.
        limit: How many are named.

    Example:
        >>> first_of(["a", "b", "c", "d"])
        "'a', 'b', 'c', ..."
    """
    return ", ".join(map(repr, names[:limit])) + (", ..." if len(names) > limit else "")
