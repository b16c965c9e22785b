"""What each size of a grid scores and what it costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from st_matryoshka2d.evaluation.grid import pivots
from st_matryoshka2d.evaluation.grid.columns import AXES
from st_matryoshka2d.sizes import Size, positive_int

if TYPE_CHECKING:
    from st_matryoshka2d.evaluation.grid.result import GridResult

__all__ = ["HOW_TO_TIME", "called", "checked_latency", "costs", "full_row", "name_of", "vector_bytes"]

HOW_TO_TIME = "grid.with_latency(benchmark_latency(model))"

# Bits of one coordinate, under mteb's names and sentence-transformers' `ubinary`.
_BITS = {
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "int8": 8,
    "uint8": 8,
    "int4": 4,
    "uint4": 4,
    "binary": 1,
    "ubinary": 1,
}


def vector_bytes(dim: int, precision: str = "float32") -> int:
    """Bytes of one vector in an index, packed, without what the index itself adds.

    Args:
        dim: Coordinates.
        precision: As mteb calls it: `"float32"`, `"int8"`, `"binary"`, ...

    Raises:
        ValueError: How many bits such a coordinate has is not known.

    Example:
        >>> vector_bytes(384), vector_bytes(384, "int8"), vector_bytes(100, "binary")
        (1536, 384, 13)
    """
    bits = _BITS.get(precision)
    if bits is None:
        raise ValueError(f"How many bits {precision!r} has is not known; there are {', '.join(_BITS)}.")
    return -(-positive_int(dim, "dim") * bits // 8)


def costs(grid: GridResult, task: str | None = None) -> pd.DataFrame:
    """Score and cost of every size, and of every precision of it.

    Args:
        grid: The scores. Where it has several truncations, the plain one is meant.
        task: Name of one task; None for the mean over tasks.

    Returns:
        One row for each size and precision, smallest first. `score`: the main score, NaN where one of the tasks lacks it;
        `relative`: score / score of the largest size (see `full_row`), NaN where that was not scored or is not above 0;
        `milliseconds_per_text` and `parameters`: of the depth, empty without latency; `bytes`: of one vector.

    Raises:
        ValueError: There is no such task.

    Example:
        >>> from st_matryoshka2d import GridResult
        >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "ndcg_at_10", "is_main": True}
        >>> scores = {(3, 128): 0.60, (3, 384): 0.67, (6, 128): 0.79, (6, 384): 0.84}
        >>> rows = [row | {"num_layers": n, "dim": d, "score": score} for (n, d), score in scores.items()]
        >>> grid = GridResult(pd.DataFrame(rows))
        >>> costs(grid)[["num_layers", "dim", "relative", "bytes"]].round(2)
           num_layers  dim  relative  bytes
        0           3  128      0.71    512
        1           3  384      0.80   1536
        2           6  128      0.94    512
        3           6  384      1.00   1536
    """
    one = {axis: pivots.the_one(grid.frame, axis) for axis in AXES if axis != "precision"}
    rows = grid.narrowed({**one, "task": task}).frame.query("is_main")
    # As a NaN, a task without a score makes the mean over tasks one: a size must not look better for what it lacks.
    by_task = rows.groupby(["num_layers", "dim", "precision", "task"])["score"].agg(
        lambda scores: np.mean(scores.to_numpy())
    )
    table = by_task.unstack("task").mean(axis=1, skipna=False).rename("score").reset_index()
    table["bytes"] = [vector_bytes(dim, precision) for dim, precision in zip(table["dim"], table["precision"], strict=True)]
    times = pd.DataFrame({"num_layers": []}) if grid.latency is None else grid.latency
    of_depth = (
        times.set_index("num_layers").reindex(table["num_layers"]).reindex(columns=["milliseconds_per_text", "parameters"])
    )
    table["milliseconds_per_text"] = of_depth["milliseconds_per_text"].astype(float).array
    table["parameters"] = of_depth["parameters"].astype("Int64").array
    full = full_row(table)
    table["relative"] = table["score"] / (full["score"] if full is not None and full["score"] > 0 else np.nan)
    # A narrow terminal leaves out the middle ones.
    names = ["num_layers", "dim", "score", "relative", "precision", "milliseconds_per_text", "parameters", "bytes"]
    return table.sort_values(["num_layers", "dim", "bytes"], ignore_index=True)[names]


def full_row(table: pd.DataFrame) -> pd.Series[Any] | None:
    """What the sizes are compared with: the largest depth and width there are, in the precision of most bytes.

    Args:
        table: What `costs` makes.

    Returns:
        Its row; None where the largest depth was not scored at the largest width.
    """
    largest = table[(table["num_layers"] == table["num_layers"].max()) & (table["dim"] == table["dim"].max())]
    return None if largest.empty else largest.loc[largest["bytes"].idxmax()]


def called(row: Any, full_size: str) -> str:
    """What scores are a share of, in words: the size, and whether it is the full one.

    Args:
        row: What `full_row` found.
        full_size: Of the model; empty where it is not known.
    """
    is_full = str(Size(row["num_layers"], row["dim"])) == full_size
    other = f", which has not the full {full_size}" if full_size else ""
    return f"{name_of(row)} ({'the full size' if is_full else f'the largest of the grid{other}'})"


def name_of(row: Any) -> str:
    """How a row of `costs` is called: `"4L-128d"`, or `"4L-128d int8"`.

    Args:
        row: Has `num_layers`, `dim` and `precision` as attributes.
    """
    size = str(Size(row.num_layers, row.dim))
    return size if row.precision == AXES["precision"] else f"{size} {row.precision}"


def checked_latency(times: pd.DataFrame, depths: Iterable[int]) -> pd.DataFrame:
    """A copy of a table of times, if it has what a grid needs.

    Args:
        times: What `benchmark_latency` returns, or a table of your own with `num_layers` and `milliseconds_per_text`, and
            `parameters` where they are to be told.
        depths: The depths of the grid.

    Raises:
        TypeError: Not a table.
        ValueError: A column or one of the depths is missing, a depth is there twice, or a time is not above 0.
    """
    if not isinstance(times, pd.DataFrame):
        raise TypeError(f"The times are a table as benchmark_latency(model) returns it, got {type(times).__name__}.")
    if missing := {"num_layers", "milliseconds_per_text"} - set(times.columns):
        raise ValueError(
            f"The times lack {', '.join(sorted(missing))}; a table as benchmark_latency(model) returns it is needed, got "
            f"the columns {list(times.columns)}."
        )
    known = times["num_layers"].tolist()
    if len(set(known)) < len(known):
        raise ValueError(f"The times have a depth more than once: num_layers is {known}.")
    if untimed := sorted({int(depth) for depth in depths} - set(known)):
        raise ValueError(
            f"The times lack num_layers {', '.join(map(str, untimed))}, which the grid has; there are "
            f"{', '.join(map(str, known))}. Time all depths: benchmark_latency(model)."
        )
    milliseconds = times["milliseconds_per_text"].to_numpy(dtype=float)
    if not (np.isfinite(milliseconds) & (milliseconds > 0)).all():
        raise ValueError(f"milliseconds_per_text must be above 0, got {milliseconds.tolist()}.")
    return times.sort_values("num_layers", ignore_index=True)
