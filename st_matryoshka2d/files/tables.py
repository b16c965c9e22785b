"""Save tables atomically to one Parquet or JSON file each, and read back exactly what was written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.atomic import check_is_file, replace_file
from st_matryoshka2d.files.parquet import write_parquet

_Content = tuple[pd.DataFrame, dict[str, Any]]


@dataclass(frozen=True)
class TableFile:
    """File format of one kind of result: a table and its metadata, as Parquet or JSON."""

    name: str
    columns: Mapping[str, type]
    # columns of lists, with None where a row has none
    lists: Mapping[str, type] = field(default_factory=dict)

    def write(self, path: str | os.PathLike[str], frame: pd.DataFrame, about: Mapping[str, Any]) -> None:
        """Save a table with its metadata, `about`: tables and texts."""
        suffix, plain = self._suffix(path), frame[[*self.columns]]
        meta = {name: value.to_dict("list") if isinstance(value, pd.DataFrame) else value for name, value in about.items()}
        table = pa.Table.from_pandas(plain, preserve_index=False)
        for name in self.lists:
            cells = frame[name].astype(object).where(frame[name].notna(), None)
            table = table.append_column(name, pa.array(list(cells), self._schema.field(name).type))
        if suffix == ".parquet":
            write_parquet(path, table, {self._kind: json.dumps(meta)})
            return
        rows = plain.to_dict("records")
        for name in self.lists:
            for row, value in zip(rows, table[name].to_pylist(), strict=True):
                row |= {} if value is None else {name: value}
        content = json.dumps({"kind": self._kind, **meta, "rows": rows}, ensure_ascii=False)
        replace_file(path, lambda part: part.write_text(content, encoding="utf-8"))

    def read(self, path: str | os.PathLike[str]) -> _Content:
        """Read what `write` saved."""
        read = self._read_parquet if self._suffix(path) == ".parquet" else self._read_json
        check_is_file(path)
        table, meta = read(Path(path))
        lists = {name: pd.Series(table[name].to_pylist(), dtype=object) for name in self.lists}
        frame = table.select([*self.columns]).to_pandas(ignore_metadata=True).assign(**lists)
        return frame, {name: pd.DataFrame(value) if isinstance(value, dict) else value for name, value in meta.items()}

    @property
    def _kind(self) -> str:
        return f"st_matryoshka2d.{self.name}"

    @property
    def _schema(self) -> pa.Schema:
        lists = {name: pa.list_(pa.from_numpy_dtype(kind)) for name, kind in self.lists.items()}
        return pa.schema({name: pa.from_numpy_dtype(kind) for name, kind in self.columns.items()} | lists)

    def _suffix(self, path: str | os.PathLike[str]) -> str:
        suffix = Path(path).suffix.lower()
        if suffix not in (".parquet", ".json"):
            raise UsageError(f"A {self.name} is saved as .parquet or .json, got {os.fspath(path)!r}.")
        return suffix

    def _read_parquet(self, path: Path) -> tuple[pa.Table, dict[str, Any]]:
        try:
            # `read_table` would open the path twice, and find another file the second time if it is
            # being replaced.
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read()
        except (pa.ArrowException, OSError) as error:
            # missing or unreadable: the system's own message
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise UsageError(f"{path} is not a Parquet file: {error}") from error
        metadata = table.schema.metadata or {}
        if self._kind.encode() not in metadata or not {*self.columns, *self.lists} <= set(table.column_names):
            raise UsageError(f"{path} is a Parquet file, but not one that {self.name}.save wrote.")
        return table, json.loads(metadata[self._kind.encode()])

    def _read_json(self, path: Path) -> tuple[pa.Table, dict[str, Any]]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
            raise UsageError(f"{path} is not a JSON file: {error}") from error
        if not isinstance(content, dict) or content.pop("kind", None) != self._kind:
            raise UsageError(f"{path} is a JSON file, but not one that {self.name}.save wrote.")
        try:
            table = pa.Table.from_pylist(content.pop("rows", None), self._schema)
        except (AttributeError, TypeError, pa.ArrowException):
            table = None
        if table is None or any(table[name].null_count for name in self.columns):
            raise UsageError(f"{path} is a JSON file of {self.name}.save, but its rows are broken.")
        return table, content


class SavedTable:
    """A dataclass with a table, `frame`, that is saved in one file."""

    _file: ClassVar[TableFile]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save everything to one file, atomically.

        Args:
            path: Ends in `.parquet` or `.json`.

        Raises:
            ValueError: The path has another suffix.
        """
        self._file.write(path, *self._content())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote.

        Args:
            path: Ends in `.parquet` or `.json`.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The path has another suffix, or the file holds no such result.
        """
        frame, about = cls._file.read(path)
        try:
            return cls._of(frame, about)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{os.fspath(path)} holds no {cls.__name__} that this version can read: {error}") from error

    def _content(self) -> _Content:
        """Return the table and its metadata."""
        about = {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]
        return about.pop("frame"), about

    @classmethod
    def _of(cls, frame: pd.DataFrame, about: dict[str, Any]) -> Self:
        """Build a result from its table and metadata."""
        return cls(frame=frame, **about)  # type: ignore[call-arg]
