"""Tables: for people as rich draws them, for programs as records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from st_matryoshka2d.config_metadata import layers_by_dims
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_table", "read_texts", "records", "table", "table_of_sizes", "written"]


def table(head: Sequence[str], body: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> Table:
    """A table of numbers."""
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in head:
        drawn.add_column(name, justify="left" if name in texts else "right", overflow="fold")
    for row in body:
        drawn.add_row(*row)
    return drawn


def table_of_sizes(sizes: Iterable[Size]) -> Table:
    """Sizes by layers."""
    rows = [[", ".join(map(str, numbers)) for numbers in row] for row in layers_by_dims(sizes)]
    return table(["layers", "dims"], rows, texts=["layers", "dims"])


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table for JSON, with null for NaN."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return rows


def read_table(path: Path, **settings: Any) -> pd.DataFrame:
    """A table from a file."""
    import pandas as pd

    try:
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path)
        return pd.read_json(path) if path.suffix.lower() == ".json" else pd.read_csv(path, **settings)
    except ValueError as error:  # pandas' and pyarrow's errors are ValueErrors, and do not name the file
        raise ValueError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}") from error


def read_texts(path: Path, texts: Sequence[str], others: Sequence[str], hint: str) -> pd.DataFrame:
    """A table whose text columns are read as texts, even "NA" or "42"."""
    table = read_table(path, keep_default_na=False, dtype=dict.fromkeys(texts, str))
    if missing := [column for column in (*texts, *others) if column not in table.columns]:
        raise ValueError(
            f"{path} has no column {' and no '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, table.columns))}. {hint}"
        )
    return table


def written(*paths: Path | None) -> list[str]:
    """Names of the files that were written."""
    return [str(path) for path in paths if path is not None]
