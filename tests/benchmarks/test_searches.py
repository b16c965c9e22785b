"""Early exit compared with a loop over queries."""

from __future__ import annotations

import numpy as np
import pytest
from early_exit import learned, stopped


@pytest.mark.parametrize("depths", [[1, 2, 3], [1, 3], [2, 3]])
@pytest.mark.parametrize("threshold", [-1.0, 0.3, 0.7, np.inf])
def test_a_query_stops_where_its_lead_is_large_enough(depths: list[int], threshold: float) -> None:
    random = np.random.default_rng(0)
    leads, scores = random.random((3, 20)), random.random((3, 20))
    layers, ndcg = [], []
    for query in range(20):
        enough = [depth for depth in depths if leads[depth - 1, query] > threshold]
        layers.append(enough[0] if enough else depths[-1])
        ndcg.append(scores[layers[-1] - 1, query])
    assert stopped(leads, scores, depths, threshold) == pytest.approx((np.mean(layers), np.mean(ndcg)))


def test_informative_leads_save_layers() -> None:
    easy = np.arange(200) % 2 == 0
    scores = np.array([np.where(easy, 1.0, 0.2), np.ones(200)])
    leads = np.array([np.where(easy, 0.9, 0.1), np.ones(200)])
    layers, ndcg, whole = learned(leads, scores, [1, 2])
    assert ndcg == whole == 1.0
    assert layers == pytest.approx(1.5, abs=0.05)
