"""Truncation methods, compared with loops and scikit-learn."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sklearn import decomposition

from st_matryoshka2d import truncate
from st_matryoshka2d.evaluation.truncations import PCA, random_subset, window
from st_matryoshka2d.grid.truncation_result import percent_removed, truncation_dims
from tests.support import families

TEXTS = [" ".join(random.Random(n).choices(families.WORDS, k=2 + n % 7)) for n in range(80)]
# Draws of `random.Random(0)`, sorted to give the order: 0.844, 0.758, 0.421, 0.259, 0.511, 0.405,
# 0.784, 0.303.
ORDER_OF_SEED_0 = [3, 7, 5, 2, 4, 1, 6, 0]


def embeddings(texts: int = 5, dim: int = 32) -> torch.Tensor:
    return torch.randn(texts, dim, generator=torch.Generator().manual_seed(3))


def test_steps_match_tables_of_papers() -> None:
    of_768, of_1024 = truncation_dims(768), truncation_dims(1024)
    assert [percent_removed(d, 768) for d in of_768] == [0, 10, 20, 30, 33, 40, 50, 60, 67, 70, 80, 83, 90, 92]
    assert [percent_removed(d, 1024) for d in of_1024] == [0, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 88, 90, 94]
    assert {512, 256, 128, 64} < set(of_768)
    assert {768, 512, 256, 128, 64} < set(of_1024)
    assert [d for d in of_768 if d & (d - 1)] == [768, 691, 614, 538, 461, 384, 307, 230, 154, 77]
    assert truncation_dims(100) == [100, 90, 80, 70, 64, 60, 50, 40, 32, 30, 20, 16, 10, 8]
    assert truncation_dims(1) == [1]
    with pytest.raises(ValueError, match="full_dim must be 1 or more, got 0"):
        truncation_dims(0)


def test_random_subset_is_reproducible() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    shuffled = random_subset(0, 8)(torch.arange(8.0).expand(2, 8))
    assert shuffled.tolist() == [ORDER_OF_SEED_0] * 2
    assert torch.equal(torch.get_rng_state(), before)
    random.seed(5)
    assert torch.equal(random_subset(0, 8)(torch.arange(8.0).expand(2, 8)), shuffled)


def test_random_subsets_shuffle_every_coordinate_and_differ_by_seed() -> None:
    orders = [random_subset(seed, 384)(torch.arange(384)[None])[0].tolist() for seed in range(5)]
    assert all(sorted(order) == list(range(384)) for order in orders)
    assert len({tuple(order[:8]) for order in orders}) == 5
    # Half of a random order contains about half of the first 192 coordinates: 96, s.d. 6.9.
    assert all(60 < sum(place < 192 for place in order[:192]) < 132 for order in orders)


@pytest.mark.parametrize("start", [0, 1, 20, 31])
def test_window_wraps_around(start: int) -> None:
    full = embeddings()
    expected = [[row[(start + i) % 32].item() for i in range(32)] for row in full]
    assert window(start, 32)(full).tolist() == expected


def test_components_match_scikit_learn(tiny: SentenceTransformer) -> None:
    for num_layers in (2, 4):
        pca, cut = PCA.fit(tiny, TEXTS, num_layers), truncate(tiny, num_layers=num_layers)
        sample, others = cut.encode(TEXTS).astype(np.float64), cut.encode(["red river", "the old house"])
        expected = decomposition.PCA().fit(sample)
        projected = pca(torch.from_numpy(others)).numpy()
        wanted = expected.transform(others)
        stable = expected.explained_variance_ > 1e-7 * expected.explained_variance_[0]
        assert stable.sum() >= 30
        assert np.abs(projected - wanted * np.sign(projected * wanted))[:, stable].max() < 1e-4
        assert (pca.components.gather(0, pca.components.abs().argmax(0, keepdim=True)) > 0).all()


def test_name_depends_on_sample(tiny: SentenceTransformer) -> None:
    name = PCA.fit(tiny, TEXTS, 4).name
    assert name.startswith("pca-")
    assert PCA.fit(tiny, [*reversed(TEXTS), TEXTS[0]], 4).name == name
    assert PCA.fit(tiny, [*TEXTS, "one more"], 4).name != name


def test_truncations_can_be_pickled(tiny: SentenceTransformer) -> None:
    for truncation in (random_subset(4, 32), window(9, 32), PCA.fit(tiny, TEXTS, 4)):
        again = pickle.loads(pickle.dumps(truncation))
        assert again.name == truncation.name
        assert torch.equal(again(embeddings()), truncation(embeddings()))


def test_components_of_a_broken_model_are_refused(tiny: SentenceTransformer) -> None:
    with torch.no_grad():
        next(tiny.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="not all finite"):
        PCA.fit(tiny, TEXTS, 4)
