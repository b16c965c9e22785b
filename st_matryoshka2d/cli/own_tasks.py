"""Tasks from the user's own files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from st_matryoshka2d.cli.tables import read_columns, read_table
from st_matryoshka2d.errors import UsageError

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

# A function that makes a task, the files by its names for them, their tables, and its other arguments.
Own: TypeAlias = tuple[str, dict[str, Path], list[Any], dict[str, str]]


def own_files(
    pairs: list[Path] | None,
    labelled_pairs: list[Path] | None,
    search: tuple[Path, Path, Path] | None,
    text_column: list[str] | None,
    value_column: str | None,
) -> list[Own]:
    """Read all files of a user, of which `task_of` makes tasks."""
    scored = _pairs_in("sts_task", pairs, text_column, score=value_column or "score")
    return scored + _pairs_in("pair_task", labelled_pairs, text_column, label=value_column or "label") + _search_in(search)


def _pairs_in(make: str, paths: list[Path] | None, text_column: list[str] | None, **value: str) -> list[Own]:
    """Read files of pairs; `value` is the column of scores or labels, by the maker's name for it."""
    texts = text_column or ["sentence1", "sentence2"]
    if len(texts) != 2:
        raise UsageError(f"Pairs have two columns of texts: give --text-column twice, not {texts}.")
    [number] = value.values()
    columns = {"sentence1": texts[0], "sentence2": texts[1], **value}
    tables = {path: read_columns(path, texts, "--text-column", number) for path in paths or []}
    return [(make, {"pairs": path}, [table], {**columns, "name": _name(path)}) for path, table in tables.items()]


def _search_in(paths: tuple[Path, Path, Path] | None) -> list[Own]:
    """Read documents, queries and judgments."""
    if paths is None:
        return []
    files = dict(zip(("corpus", "queries", "qrels"), paths, strict=True))
    return [("retrieval_task", files, [read_table(path) for path in paths], {"name": "search"})]


def _name(path: Path) -> str:
    """Name a task after its file, in characters that a task's name may have."""
    return re.sub(r"[^\w.+-]+", " ", path.stem).strip()


def task_of(make: str, files: dict[str, Path], tables: list[Any], others: dict[str, str]) -> AbsTask:
    """Make a task; in what the library refuses, name the files in place of its arguments."""
    import st_matryoshka2d

    try:
        task: AbsTask = getattr(st_matryoshka2d, make)(*tables, **others)
    except UsageError as error:
        told, quote, cell = str(error).partition("'")  # a cell may have these words as well
        told = re.sub(rf"(^|\bin )({'|'.join(files)})\b", lambda found: f"{found[1]}{files[found[2]]}", told)
        raise UsageError(told + quote + cell) from error
    return task
