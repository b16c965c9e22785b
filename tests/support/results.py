"""Shared code of the file tests: compare grids bit by bit, and check that files are complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mteb.results import TaskResult
from safetensors.numpy import load_file

from st_matryoshka2d import GridResult
from st_matryoshka2d.grid.grid_tables import PLACE


def assert_identical(one: GridResult, other: GridResult) -> None:
    """Check that scores, items and types are equal."""
    assert (one.model, one.revision) == (other.model, other.revision)
    pd.testing.assert_frame_equal(one.frame, other.frame, check_exact=True)
    pd.testing.assert_frame_equal(one.items[PLACE], other.items[PLACE], check_exact=True, check_dtype=len(one.items) > 0)
    for column in ("metric", "ids", "values", "gold"):
        for left, right in zip(one.items[column], other.items[column], strict=True):
            assert type(left) is type(right)
            if isinstance(left, np.ndarray):
                np.testing.assert_array_equal(left, right, strict=True)
            else:
                assert left == right


def files(folder: Path) -> list[Path]:
    """List all files, including unfinished ones."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def unfinished(path: Path, folder: Path) -> bool:
    """Whether the name marks a file as unfinished: the file or a parent folder is hidden or new."""
    return any(part.startswith((".", "new-")) for part in path.relative_to(folder).parts)


def read_whole(path: Path) -> Any:
    """Read a file; fail if it is truncated."""
    if path.suffix == ".parquet":
        return GridResult.load(path)
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".json":
        return json.loads(path.read_text())
    raise ValueError(f"What is {path}?")


def scores_of_mteb(folder: Path) -> dict[str, str]:
    """Return mteb's results by size and task without durations, as text, so that nan equals nan."""
    return {
        "/".join(path.parts[-2:]): json.dumps(TaskResult.from_disk(path).scores)
        for path in sorted(folder.glob("results/*/*/experiments/*/*.json"))
        if path.name != "model_meta.json"
    }
