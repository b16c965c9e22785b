"""Standard deviations of coordinates, and their figure."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import CoordinateSpread, coordinate_spread, truncate
from tests.support import families

TEXTS = [" ".join(random.Random(n).choices(families.WORDS, k=2 + n % 7)) for n in range(80)]


def test_the_spread_is_the_standard_deviation_of_each_coordinate(tiny: SentenceTransformer) -> None:
    spread = coordinate_spread(tiny, TEXTS, num_layers=2)
    full = truncate(tiny, num_layers=2).encode(TEXTS).astype(np.float64)
    for coordinate in range(32):
        column = full[:, coordinate]
        expected = (((column - column.sum() / 80) ** 2).sum() / 80) ** 0.5
        assert spread.values[coordinate] == pytest.approx(expected, abs=1e-6)
    assert spread.to_frame()["coordinate"].tolist() == list(range(1, 33))
    assert not np.allclose(coordinate_spread(tiny, TEXTS).values, spread.values)


def test_the_spread_of_coordinates_is_drawn_with_its_running_mean(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(0.1, 1.0, 96)
    spread = CoordinateSpread(values, num_layers=3, num_texts=50)
    (panel,) = spread.plot(tmp_path / "spread.png").axes
    raw, smooth = panel.lines
    assert raw.get_xydata() == pytest.approx(np.column_stack([range(1, 97), values]))
    means = np.asarray(smooth.get_xydata())
    assert means[0] == pytest.approx([2.5, values[:4].mean()])
    assert means[-1] == pytest.approx([94.5, values[-4:].mean()])
    assert panel.get_title() == "3 layers, 50 texts"


def test_spread_as_text() -> None:
    values = np.array([0.7, 0.4, *[0.2] * 4, 1e-9, 0.0])
    expected = (
        "6 layers, 50 texts: standard deviation of 8 coordinates 0 to 0.7, median 0.2;\nmean of the first quarter 4.1 times"
    )
    assert str(CoordinateSpread(values, 6, 50)) == f"{expected} that of the others; 2 constant."
    assert str(CoordinateSpread(values[:5], 6, 50)).endswith("; none constant.")
    assert "nan times" in str(CoordinateSpread(np.zeros(8), 6, 50))
