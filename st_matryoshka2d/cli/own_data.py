"""Tasks of the user's own files: pairs of texts with scores or labels, and documents with queries and judgments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from st_matryoshka2d.cli.tables import read_table
from st_matryoshka2d.cli.texts import read_texts

if TYPE_CHECKING:
    import pandas as pd
    from mteb.abstasks import AbsTask

SEARCH_FILES = (".csv", ".tsv", ".jsonl", ".parquet")

_HINT = "Name the first text, the second and the score or label with --columns A,B,SCORE."
_IDS = ["query_id", "query-id", "corpus_id", "corpus-id"]


class Pairs(NamedTuple):
    """Pairs of texts, with the columns of the two texts and of the score or label."""

    path: Path
    pairs: pd.DataFrame
    columns: list[str]


def read_pairs(paths: list[Path] | None, columns: str) -> list[Pairs]:
    """Read files of pairs, with the names of their three columns."""
    names = columns.split(",")
    return [Pairs(path, _filled(read_texts(path, names[:2], names[2:], _HINT), path), names) for path in paths or []]


def read_search(paths: tuple[Path, Path, Path] | None) -> dict[str, pd.DataFrame]:
    """Read documents, queries and judgments, whose ids stay texts, as `retrieval_task` takes them."""
    made: dict[str, pd.DataFrame] = {}
    for part, path in zip(("corpus", "queries", "qrels"), paths or (), strict=False):
        kinds: Any = dict.fromkeys(_IDS, str) if part == "qrels" else str  # judgments have numbers, too
        made[part] = _filled(read_table(path, dtype=kinds, keep_default_na=False, na_values={"score": ""}), path)
    return made


def tasks_of_pairs(make: Callable[..., AbsTask], tables: list[Pairs], value: str) -> Iterator[AbsTask]:
    """Make a task of each table; `value` is the keyword for the column of scores or labels."""
    for path, pairs, columns in tables:
        named = dict(zip(("sentence1", "sentence2", value), columns, strict=True))
        try:
            yield make(pairs, **named, name=path.stem)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _filled(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    if table.empty:
        raise ValueError(f"{path} has no rows below its header; at least one is needed.")
    return table
