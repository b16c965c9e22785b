"""Saving of all figures: unknown formats are refused before drawing, and files are complete or absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from st_matryoshka2d import CoordinateSpread, GridResult, TruncationResult, plot_speedup
from tests.support.grids import random_grid
from tests.support.quick import quick

TIMES = pd.DataFrame(
    {"num_layers": [1, 2], "milliseconds_per_text": [1.0, 2.0], "speedup": [2.0, 1.0], "theory": [2.0, 1.0]}
)


def truncated(model: str) -> TruncationResult:
    row = {"task": "T", "split": "test", "subset": "default", "metric": "m", "is_main": True, "num_layers": 6}
    cells = [(384, "first", 0.8), (96, "first", 0.76), (96, "random-0", 0.71), (96, "random-1", 0.70)]
    rows = [row | {"dim": dim, "truncation": name, "score": score} for dim, name, score in cells]
    return TruncationResult(GridResult(pd.DataFrame(rows), model=model))


def spread() -> CoordinateSpread:
    return CoordinateSpread(np.linspace(1, 0, 32), num_layers=6, num_texts=50)


DRAWN: dict[str, Callable[[Any], Figure]] = {
    "grid": lambda path: random_grid(0).plot(path),
    "pareto": lambda path: random_grid(0).plot_pareto(path),
    "comparison": lambda path: random_grid(0).named("one").compare(random_grid(1).named("other")).plot(path),
    "truncation": lambda path: truncated("one").plot(path),
    "spread": lambda path: spread().plot(path),
    "speed-up": lambda path: plot_speedup(TIMES, path),
}


@pytest.mark.parametrize("what", DRAWN)
def test_an_unknown_format_is_refused_before_anything_is_drawn(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matplotlib.figure.Figure, "add_subplot", lambda *_, **__: pytest.fail("drawn"))
    for name in ("figure.xyz", "figure"):
        with pytest.raises(ValueError, match=rf"must end with one of .*\.pdf, .*\.png, .*\.svg.*; got '.*{name}'"):
            DRAWN[what](str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", quick(DRAWN, "grid", "speed-up"))
def test_a_figure_goes_to_a_new_folder_too(what: str, tmp_path: Path) -> None:
    DRAWN[what](tmp_path / "new" / "figure.SVG")
    assert "<svg" in (tmp_path / "new" / "figure.SVG").read_text(encoding="utf-8")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["figure.SVG"]


def test_a_figure_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(figure: Figure, path: Path, **_: object) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    (tmp_path / "grid.png").write_text("before")
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", full)
    with pytest.raises(OSError, match=r"No space left on device.*grid\.png"):
        random_grid(0).plot(tmp_path / "grid.png")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]
