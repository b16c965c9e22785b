"""Rivals that read next to nothing, codes of an index, and early exit, compared with other libraries and loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from early_exit import learned, stopped
from index_bytes import int8, turn
from public.cuts import components, influence, most_influential, with_layers
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import PCA
from torch.nn import functional as F

from st_matryoshka2d import truncate
from tests.support.families import cut_by_hand

TEXTS = ["a cat", "rain in town", "he plays chess", "a kitten sleeps", "the piano at home", "my car"]
DRAW = np.random.default_rng(0)
SAMPLE = DRAW.normal(size=(200, 16)) @ np.diag(np.linspace(3, 1, 16)) + DRAW.normal(size=16)


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(tiny_folder), device="cpu").eval()


def test_components_match_sklearn() -> None:
    assert np.abs(components(SAMPLE, 5)(SAMPLE)) == pytest.approx(np.abs(PCA(5).fit_transform(SAMPLE)), abs=1e-8)


def test_the_first_layers_are_those_of_a_cut(model: SentenceTransformer) -> None:
    expected = truncate(model, num_layers=2, layers="first").encode(TEXTS)
    assert with_layers(model, [0, 1]).encode(TEXTS) == pytest.approx(expected, abs=1e-6)


def test_layers_are_left_out_between(model: SentenceTransformer) -> None:
    with cut_by_hand(model, 2, [0, 3]):
        expected = model.encode(TEXTS)
    assert with_layers(model, [0, 3]).encode(TEXTS) == pytest.approx(expected, abs=1e-5)


def test_keeps_layers_with_largest_influence(model: SentenceTransformer) -> None:
    moved = torch.zeros(4)
    tokens = 0
    for text in TEXTS:
        with torch.no_grad():
            states = model[0].model(**model.preprocess([text]), output_hidden_states=True).hidden_states
        for place in range(4):
            moved[place] += (1 - F.cosine_similarity(states[place][0], states[place + 1][0], dim=1)).sum()
        tokens += states[0].shape[1]
    assert influence(model, TEXTS) == pytest.approx((moved / tokens).numpy(), abs=1e-5)
    kept = sorted(moved.argsort(descending=True)[:2].tolist())
    expected = with_layers(model, kept).encode(TEXTS)
    assert most_influential(model, TEXTS, 2).encode(TEXTS) == pytest.approx(expected, abs=1e-6)


def test_int8_is_within_half_a_step() -> None:
    step = (SAMPLE.max(0) - SAMPLE.min(0)) / 255
    moved = np.abs(int8(SAMPLE) - SAMPLE)
    assert (moved <= 0.5001 * step).all()
    assert moved.max() > 0
    assert all(len(np.unique(column)) <= 256 for column in int8(np.repeat(SAMPLE, 3, axis=0)).T)


def test_signs_lose_less_after_the_turn() -> None:
    rows = SAMPLE - SAMPLE.mean(0)
    turned = turn(rows)
    assert turned @ turned.T == pytest.approx(np.eye(16), abs=1e-8)

    def lost(rows: np.ndarray) -> float:
        return float(np.square(np.sign(rows) - rows).sum())

    assert lost(rows @ turned) < lost(rows)


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
