"""Check the names of the columns that hold texts and embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.sizes import Size


def require_columns(found: Sequence[str], text: str, new: Iterable[str]) -> None:
    """Refuse a batch that has no texts, or in which a column would be replaced."""
    if text not in found:
        raise UsageError(f"There is no column {text!r} to read texts from, only {list(found)}. Name it: text='...'.")
    if taken := sorted(set(new) & set(found)):
        raise UsageError(
            f"There already is a column {taken[0]!r}, which would be replaced. Choose other names: columns=[...]."
        )


def named_columns(sizes: Sequence[Size], columns: Sequence[str] | None) -> dict[str, Size]:
    """The sizes by the names of their columns."""
    names = [str(size) for size in sizes] if columns is None else columns
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
        raise UsageTypeError(f"columns must be a list of names, one for each size, got {columns!r}.")
    if len(names) != len(sizes) or len(set(names)) != len(names):
        raise UsageError(f"columns must be {len(sizes)} different names, one for each size, got {list(names)}.")
    return dict(zip(names, sizes, strict=True))
