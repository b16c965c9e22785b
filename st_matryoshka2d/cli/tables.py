"""Show tables with rich or as JSON records, and read the user's own tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from st_matryoshka2d.model.declared_agreement import agreement_table
from st_matryoshka2d.model.trained_sizes import layers_by_dims
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    import pandas as pd

HOW_TO_TIME = "`st-matryoshka2d latency MODEL --out times.csv` writes one."


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


def table_of_cells(cells: pd.DataFrame) -> Table:
    """Build a table of texts by layers and dims."""
    return table(["layers / dim", *map(str, cells)], [[str(depth), *row] for depth, row in cells.iterrows()])


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


def read_table(path: Path, **of_csv: Any) -> pd.DataFrame:
    """Read a table from a Parquet, JSON, JSON Lines, TSV or CSV file."""
    import pandas as pd

    with naming_a_broken_file(path):
        match path.suffix.lower():
            case ".parquet":
                table = pd.read_parquet(path)
            case ".jsonl":
                lines = path.read_text(encoding="utf-8").split("\n")
                table = pd.DataFrame([json.loads(line) for line in lines if line.strip()])  # pandas would convert texts
            case ".json":
                table = pd.read_json(path)
            case ".tsv":
                table = pd.read_csv(path, sep="\t", **of_csv)
            case _:
                table = pd.read_csv(path, **of_csv)
    return table


@contextmanager
def naming_a_broken_file(path: Path) -> Iterator[None]:
    """Name the file in the errors of pandas and pyarrow, which are ValueErrors."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}") from error


def read_times(path: Path, depths: set[int]) -> pd.DataFrame:
    """Read the times of some depths from a file that the command `latency` wrote."""
    times = read_table(path)
    if missing := {"num_layers", "milliseconds_per_text"} - set(times.columns):
        raise ValueError(f"{path} has no column {min(missing)}, so it is not a file of times. {HOW_TO_TIME}")
    if untimed := sorted(depths - set(times["num_layers"])):
        raise ValueError(f"{path} has no time for {untimed} layers, which the grid has. {HOW_TO_TIME}")
    return times
