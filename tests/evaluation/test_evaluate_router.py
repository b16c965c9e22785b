"""Models with a Router: queries and documents use their own routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from st_matryoshka2d import GridEvaluator, Size, benchmark_latency, coordinate_spread
from tests.support import task_types
from tests.support.families import TEXTS
from tests.support.pipelines import routed
from tests.support.search import Apart
from tests.support.sts import LocalSTS, quiet
from tests.support.task_types import assert_grid_is_mteb

pytestmark = task_types.marks


@pytest.mark.parametrize("make", [Apart, LocalSTS])
def test_every_route_is_scored_as_mteb_scores_it(tiny: SentenceTransformer, make: Callable[[], Any]) -> None:
    """Queries and documents use their own routes; other texts use the default route."""
    model, sizes = routed(tiny, shared=False), [Size(1, 8), Size(4, 32)]
    grid = quiet(model, make(), sizes=sizes)
    assert_grid_is_mteb(grid, model, make, sizes)
    assert grid.score("4L-32d") != quiet(tiny, make(), sizes=sizes).score("4L-32d") or make is LocalSTS


def test_the_default_route_is_timed_scored_and_measured(tiny: SentenceTransformer) -> None:
    model = routed(tiny, shared=False)
    assert list(benchmark_latency(model, [2], rounds=1, batch_size=2, show_progress_bar=False)["num_layers"]) == [2, 4]
    assert GridEvaluator(LocalSTS(), ["2L-8d"])(model)
    alone = SentenceTransformer(modules=[*model[0].sub_modules["document"], Normalize()], device="cpu")
    np.testing.assert_allclose(coordinate_spread(model, TEXTS).values, coordinate_spread(alone, TEXTS).values, atol=1e-6)
