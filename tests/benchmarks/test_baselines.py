"""Untrained cuts, peers and early exit: their scores, compared with other libraries and loops."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cuts.layers import ALIGNED_WAYS, EVEN, FIRST, INFLUENCE, Embedder, with_layers
from cuts.scores import Pairs, Search
from cuts.widths import WIDTHS
from early_exit import learned, stopped
from peers import COLUMNS, int8, report
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import PCA
from torch.nn import functional as F

from st_matryoshka2d import align, evaluate, retrieval_task, truncate
from tests import ROOT
from tests.support.families import cut_by_hand
from tests.support.quick import quick

TEXTS = ["a cat", "rain in town", "he plays chess", "a kitten sleeps", "the piano at home", "my car"]
DRAW = np.random.default_rng(0)
SAMPLE = DRAW.normal(size=(200, 16)) @ np.diag(np.linspace(3, 1, 16)) + DRAW.normal(size=16)


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(tiny_folder), device="cpu").eval()


@pytest.fixture
def embedder(model: SentenceTransformer, tmp_path: Path) -> Embedder:
    return Embedder(model, TEXTS[:4], TEXTS[4:], [1, 2, 3, 4], tmp_path)


@pytest.mark.parametrize(("name", "whiten"), [("components", False), ("components, white", True)])
def test_components_match_sklearn(name: str, whiten: bool) -> None:
    mine = WIDTHS[name](SAMPLE, 5)(SAMPLE)
    theirs = PCA(5, whiten=whiten).fit_transform(SAMPLE)
    assert np.abs(mine) == pytest.approx(np.abs(theirs), abs=1e-8)


def test_other_widths_keep_coordinates() -> None:
    kept = {name: fit(SAMPLE, 4)(SAMPLE) for name, fit in WIDTHS.items()}
    assert (kept["first dims"] == SAMPLE[:, :4]).all()
    assert (kept["last dims"] == SAMPLE[:, -4:]).all()
    most = sorted(range(16), key=lambda place: -SAMPLE[:, place].var())[:4]
    assert (kept["dims of most variance"] == SAMPLE[:, most]).all()
    random = kept["random dims, seed 1"]
    assert all((column == SAMPLE.T).all(1).any() for column in random.T)
    assert len({tuple(column) for column in random.T}) == 4


def test_the_first_layers_are_those_of_a_cut(model: SentenceTransformer, embedder: Embedder) -> None:
    expected = truncate(model, num_layers=2, layers="first").encode(TEXTS)
    assert with_layers(model, [0, 1]).encode(TEXTS) == pytest.approx(expected, abs=1e-6)
    texts, fitted = embedder(FIRST, 2)
    assert np.concatenate([texts, fitted]) == pytest.approx(expected, abs=1e-6)


def test_layers_are_left_out_between(model: SentenceTransformer, embedder: Embedder) -> None:
    assert embedder.kept(EVEN, 2) == [0, 3]
    with cut_by_hand(model, 2, [0, 3]):
        expected = model.encode(TEXTS)
    assert np.concatenate(embedder(EVEN, 2)) == pytest.approx(expected, abs=1e-5)


def test_keeps_layers_with_largest_influence(model: SentenceTransformer, embedder: Embedder) -> None:
    moved = torch.zeros(4)
    tokens = 0
    for text in embedder.fitted:
        with torch.no_grad():
            states = model[0].model(**model.preprocess([text]), output_hidden_states=True).hidden_states
        for place in range(4):
            moved[place] += (1 - F.cosine_similarity(states[place][0], states[place + 1][0], dim=1)).sum()
        tokens += states[0].shape[1]
    assert embedder.influence == pytest.approx((moved / tokens).numpy(), abs=1e-5)
    assert embedder.kept(INFLUENCE, 2) == sorted(moved.argsort(descending=True)[:2].tolist())


def test_pairs_are_scored_as_scipy_does() -> None:
    one, two = zip(*permutations(TEXTS, 2), strict=True)
    frame = pd.DataFrame({"sentence1": one, "sentence2": two, "score": DRAW.integers(0, 6, len(one))})
    pairs = Pairs([frame, frame.iloc[:20]])
    rows = DRAW.normal(size=(len(pairs.all), 8))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    place = {text: row for row, text in enumerate(pairs.all)}
    expected = []
    for part in (frame, frame.iloc[:20]):
        found = [unit[place[a]] @ unit[place[b]] for a, b in zip(part["sentence1"], part["sentence2"], strict=True)]
        expected.append(spearmanr(found, part["score"]).statistic)
    scores = pairs.scores(rows)
    assert scores.mean == pytest.approx(100 * np.mean(expected), abs=1e-4)
    assert scores.resampled.shape == (500,)
    assert (scores.resampled == pairs.scores(rows).resampled).all()


def test_search_is_scored_as_mteb_does(model: SentenceTransformer) -> None:
    corpus = {f"d{number}": text for number, text in enumerate(TEXTS)}
    queries = {"q1": "a small cat", "q2": "bad weather", "q3": "music"}
    task = retrieval_task(corpus, queries, {"q1": {"d0": 2, "d3": 1}, "q2": ["d1"], "q3": ["d4"]}, name="Tiny")
    search = Search([task])
    rows = np.asarray(model.encode(search.all))
    full = f"4L-{rows.shape[1]}d"
    expected = evaluate(model, task, sizes=[full], show_progress_bar=False).score(full)
    assert search.scores(rows).mean == pytest.approx(100 * expected, abs=1e-3)


@pytest.mark.parametrize("way", quick(ALIGNED_WAYS, ALIGNED_WAYS[-1]))
def test_aligned_ways_are_those_of_align(way: str, embedder: Embedder, model: SentenceTransformer) -> None:
    """The embedder aligns once, and embeds all depths together."""
    embedder.fitted[:] = [f"{text} {number}" for number in range(20) for text in TEXTS]
    layers: Any = {"first layers, aligned": "first", "first and last layers, aligned": "ends"}.get(
        way, {2: [1, 4], 3: [1, 3, 4]}
    )
    aligned = align(model, embedder.fitted, layers=layers)
    for depth in (1, 2, 3, 4):
        rows, _ = embedder(way, depth)
        np.testing.assert_allclose(rows, truncate(aligned, num_layers=depth).encode(TEXTS[:4]), atol=1e-5)


PEERS = ROOT / "benchmarks" / "results" / "peers"


def test_report_matches_scores() -> None:
    frame = pd.read_csv(PEERS / "peers.csv")
    assert list(frame) == list(COLUMNS)
    assert report(frame) == (PEERS / "README.md").read_text(encoding="utf-8")


def test_int8_approximates_embeddings() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    coded = int8(lambda texts: rows[: len(texts)], ["text"] * 50)(["text"] * 50)
    step = (rows.max(0) - rows.min(0)) / 255
    assert (np.abs(coded - rows) <= 1.001 * step).all()
    assert np.abs(coded - rows).max() > 0


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
