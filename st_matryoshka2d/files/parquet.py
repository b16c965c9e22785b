"""Write a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from st_matryoshka2d.files.atomic import replace_file


def write_parquet(path: str | os.PathLike[str], table: pa.Table, metadata: Mapping[Any, Any]) -> None:
    """Write one file completely or not at all; the same rows give the same bytes."""
    table = table.replace_schema_metadata(metadata)
    replace_file(path, lambda part: pq.write_table(table, part, compression="zstd", write_page_checksum=True))
