"""A grid in one file, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError

from st_matryoshka2d.evaluation.grid.columns import AXES, CELL, COLUMNS, ITEM_COLUMNS

__all__ = ["check_is_file", "naming_the_file", "read", "replace_file", "write"]

_KIND = "st_matryoshka2d.GridResult"
_ITEMS = ["ids", "values", "gold"]


def replace_file(path: str | os.PathLike[str], write_to: Callable[[Path], object]) -> None:
    """Write a file so that whoever reads `path`, at any moment, finds the old content or the new one, whole.

    Args:
        path: The file; its folder is made where it is missing.
        write_to: Gets the path of a new file beside it, with the same ending, and fills it.

    Raises:
        OSError: It could not be written; the file is what it was.
    """
    wanted = Path(path)
    with naming_the_file(wanted):
        wanted.parent.mkdir(parents=True, exist_ok=True)
        # Not a file of `tempfile`, which nobody but its owner may read.
        part = wanted.with_name(f".{uuid4().hex}.part{wanted.suffix}")
        try:
            write_to(part)
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(wanted)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    """Say which file could not be written, such as where the disk is full: the system says it of no open file.

    Args:
        path: The file.

    Raises:
        OSError: In place of one without this path, or of safetensors' own error.
    """
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error
    except OSError as error:
        if error.errno is None:
            raise OSError(f"{path} could not be written: {error}") from error
        raise OSError(error.errno, f"{os.strerror(error.errno)}, so this could not be written", str(path)) from error


def write(path: str | os.PathLike[str], frame: pd.DataFrame, items: pd.DataFrame, about: Mapping[str, Any]) -> None:
    """Save a grid; the items lie in the rows of the main scores that are made of them.

    Args:
        path: Ends in `.parquet` or `.json`.
        frame: The scores.
        items: What they are made of.
        about: Texts and tables that belong to the grid as a whole.
    """
    suffix = _suffix(path)
    told = {name: value.to_dict("list") if isinstance(value, pd.DataFrame) else value for name, value in about.items()}
    rows = frame.merge(items.assign(is_main=True), on=[*CELL, "is_main"], how="left")
    if suffix == ".parquet":
        types = {"ids": pa.list_(pa.string()), "values": pa.list_(pa.float64()), "gold": pa.list_(pa.float64())}
        lists = {name: [_listed(value) for value in rows[name]] for name in _ITEMS}
        table = pa.Table.from_pandas(frame, preserve_index=False)
        for name, kind in types.items():
            table = table.append_column(name, pa.array(lists[name], kind))
        table = table.replace_schema_metadata({_KIND: json.dumps(told)})
        replace_file(path, lambda part: pq.write_table(table, part, compression="zstd", write_page_checksum=True))
        return
    for name in _ITEMS:
        rows[name] = pd.Series([_listed(value) for value in rows[name]], dtype=object)
    content = {"kind": _KIND, **told, "rows": [_without_gaps(row) for row in rows.to_dict("records")]}
    replace_file(path, lambda part: part.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8"))


def read(path: str | os.PathLike[str]) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """What `write` was given.

    Args:
        path: Ends in `.parquet` or `.json`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Another ending, or something else than `write` makes.
    """
    suffix = _suffix(path)
    check_is_file(path)
    if suffix == ".parquet":
        rows, told = _read_parquet(Path(path))
    else:
        rows, told = _read_json(Path(path))
    kept = rows[rows["ids"].notna()][ITEM_COLUMNS].copy()
    kept["values"] = pd.Series([np.asarray(values, dtype=float) for values in kept["values"]], kept.index, dtype=object)
    kept["ids"] = pd.Series([list(ids) for ids in kept["ids"]], kept.index, dtype=object)
    gold = [None if values is None else np.asarray(values, dtype=float) for values in kept["gold"]]
    kept["gold"] = pd.Series(gold, kept.index, dtype=object)
    about = {name: pd.DataFrame(value) if isinstance(value, dict) else value for name, value in told.items()}
    return rows[[*COLUMNS, *AXES]], kept, about


def _read_parquet(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    try:
        # `read_table` would open the path twice, and find another file the second time if it is being replaced.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # missing, not to be read: the system's own words
            raise
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    metadata = table.schema.metadata or {}
    if _KIND.encode() not in metadata or not {*COLUMNS, *AXES, *_ITEMS} <= set(table.column_names):
        raise ValueError(f"{path} is a Parquet file, but not one that GridResult.save wrote.")
    rows = table.to_pandas(ignore_metadata=True)
    for name in _ITEMS:
        rows[name] = pd.Series(table[name].to_pylist(), dtype=object)
    return rows, json.loads(metadata[_KIND.encode()])


def _read_json(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
        raise ValueError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(content, dict) or content.pop("kind", None) != _KIND:
        raise ValueError(f"{path} is a JSON file, but not one that GridResult.save wrote.")
    rows = content.pop("rows", None)
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise ValueError(f"{path} is a JSON file of GridResult.save, but its rows are not what that writes.")
    frame = pd.DataFrame({name: [row.get(name) for row in rows] for name in [*COLUMNS, *AXES]})
    for name in _ITEMS:
        frame[name] = pd.Series([row.get(name) for row in rows], dtype=object)
    return frame.assign(score=frame["score"].astype(float)), content


def _is_row(row: Any) -> bool:
    kinds = {name: str for name in [*COLUMNS, *AXES]} | {
        "num_layers": int,
        "dim": int,
        "score": int | float,
        "is_main": bool,
    }
    return isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in kinds.items())


def check_is_file(path: str | os.PathLike[str]) -> None:
    """Refuse what cannot be read because it is no file.

    Args:
        path: Given by the user.

    Raises:
        FileNotFoundError: There is nothing.
        ValueError: It is a folder.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r} in {Path.cwd()}.")
    if Path(path).is_dir():
        raise ValueError(f"{os.fspath(path)!r} is a folder; name the file that was saved.")


def _suffix(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (".parquet", ".json"):
        raise ValueError(f"A grid is saved as .parquet or .json, got {os.fspath(path)!r}.")
    return suffix


def _listed(value: Any) -> list[Any] | None:
    return None if value is None or isinstance(value, float) else np.asarray(value).tolist()


def _without_gaps(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _ITEMS or value is not None}
