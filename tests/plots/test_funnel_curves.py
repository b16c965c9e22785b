"""The figure of funnels: the line at 100 percent, and values above it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from st_matryoshka2d.plots.funnel_curves import funnel_curves


@pytest.mark.parametrize("most", [98.0, 100.0, 101.5])
def test_marks_100_percent_and_explains_higher_values(most: float) -> None:
    shares = pd.DataFrame([[70.0, 90.0], [95.0, most]], index=["6L-32d", "6L-64d"], columns=[20, 50])
    figure = funnel_curves(shares, {"6L-32d": 128, "6L-64d": 256}, title="T", label="kept (%)")
    (axes,) = figure.axes
    assert any(np.asarray(line.get_ydata()).tolist() == [100, 100] for line in axes.lines)
    assert axes.get_ylim()[1] > 100
    assert ("Above 100" in figure.get_supxlabel()) == (most > 100)
