"""Show tables with rich or as JSON records, and read the user's own tables and texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import RenderableType
from rich.table import Table

from st_matryoshka2d.cli import options
from st_matryoshka2d.model.declared_agreement import agreement_table
from st_matryoshka2d.model.trained_sizes import layers_by_dims
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    import pandas as pd

HOW_TO_TIME = "`st-matryoshka2d latency MODEL --out times.csv` writes one."

_HINT = "Name the columns of texts with --columns."
_COLUMNS = "A column of texts; may be repeated. A .txt file has one text per line."

Columns = Annotated[list[str] | None, typer.Option(help=_COLUMNS, show_default="text")]


def table(head: Sequence[str], body: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> Table:
    """Build a table of numbers; columns named in `texts` are aligned to the left."""
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in head:
        drawn.add_column(name, justify="left" if name in texts else "right", overflow="fold")
    for row in body:
        drawn.add_row(*row)
    return drawn


def table_of(rows: Iterable[Mapping[Any, Any]], columns: Mapping[str, str], texts: Sequence[str] = ()) -> Table:
    """Build a table with a row for each of `rows`; a column is its name and a format, such as `{score:.2f}`."""
    return table(list(columns), [[form.format_map(row) for form in columns.values()] for row in rows], texts)


def table_of_sizes(sizes: Iterable[Size]) -> Table:
    """Build a table of sizes, by layers."""
    rows = [[", ".join(map(str, numbers)) for numbers in row] for row in layers_by_dims(sizes)]
    return table(["layers", "dims"], rows, texts=["layers", "dims"])


def table_of_agreement(measured: Mapping[Size, float], other: str = "the whole model") -> list[RenderableType]:
    """Build a table of what `align` measured, by layers and dims, below its title; nothing if it was not measured."""
    if not measured:
        return []
    title = f"Agreement with {other}, on texts left out of the fit (matryoshka_agreement)"
    return [title, "", table(*agreement_table(measured))]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert the rows of a table for JSON, with null for NaN."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return rows


def read_table(path: Path, **settings: Any) -> pd.DataFrame:
    """Read a table from a Parquet, JSON or CSV file."""
    import pandas as pd

    try:
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path)
        return pd.read_json(path) if path.suffix.lower() == ".json" else pd.read_csv(path, **settings)
    except ValueError as error:  # pandas' and pyarrow's errors are ValueErrors, and do not name the file
        raise ValueError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}") from error


def read_texts(path: Path, texts: Sequence[str], others: Sequence[str], hint: str) -> pd.DataFrame:
    """Read a table whose text columns keep "NA" and "42" as texts; an empty cell of the others is NaN."""
    kept = {"keep_default_na": False, "na_values": dict.fromkeys(others, "")}
    table = read_table(path, dtype=dict.fromkeys(texts, str), **kept)
    if missing := [column for column in (*texts, *others) if column not in table.columns]:
        raise ValueError(
            f"{path} has no column {' and no '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, table.columns))}. {hint}"
        )
    return table


def read_times(path: Path, depths: set[int]) -> pd.DataFrame:
    """Read the times of some depths from a file that the command `latency` wrote."""
    times = read_table(path)
    if missing := {"num_layers", "milliseconds_per_text"} - set(times.columns):
        raise ValueError(f"{path} has no column {min(missing)}, so it is not a file of times. {HOW_TO_TIME}")
    if untimed := sorted(depths - set(times["num_layers"])):
        raise ValueError(f"{path} has no time for {untimed} layers, which the grid has. {HOW_TO_TIME}")
    return times


def texts_option(what: str) -> Any:
    """Option for a file of texts."""
    return options.file_option("--texts", what, (".csv", ".parquet", ".txt"), exists=True)


def drawn_texts(path: Path, columns: list[str] | None, most: int, *, different: bool = False) -> list[str]:
    """Read the texts in a file in order, column after column, without empty ones; a reproducible sample if too many."""
    import pandas as pd

    from st_matryoshka2d.encoding.left_out import LeftOut

    if path.suffix.lower() == ".txt":
        if columns:
            raise typer.BadParameter("--columns needs a .csv or .parquet file; a .txt file has one text per line.")
        try:
            cells = {str(path): path.read_text(encoding="utf-8").splitlines()}
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text in UTF-8: {error}") from error
    else:
        names = columns or ["text"]
        table = read_texts(path, names, [], _HINT)
        cells = {f"{path}, column {name!r}": list(table[name]) for name in names}
    filled: list[str] = []
    for what, column in cells.items():
        left_out = LeftOut(what)
        filled += _texts_of(list(left_out.filled(column)), what)
        left_out.tell(stacklevel=2)
    texts = pd.Series(filled, dtype=object)
    if texts.empty:
        raise ValueError(f"{path} has no text, or only empty ones; at least one is needed.")
    if different:
        texts = texts.drop_duplicates()
    return list(texts.sample(most, random_state=0) if len(texts) > most else texts)


def _texts_of(column: list[Any], what: str) -> list[str]:
    """Refuse a column with values other than texts, as a Parquet file may have."""
    if others := [value for value in column if not isinstance(value, str)]:
        raise ValueError(
            f"{what}: expected texts, but {len(others):,} of its values are not texts, "
            f"such as {others[0]!r} ({type(others[0]).__name__}). {_HINT}"
        )
    return column
