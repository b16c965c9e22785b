"""Truncations: methods compared with loops and scikit-learn, and cells with mteb's scores of a model that truncates."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sklearn import decomposition

from st_matryoshka2d import GridResult, Size, evaluate_truncations, truncate
from st_matryoshka2d.evaluation.truncations import PCA, random_subset, window
from st_matryoshka2d.grid.truncation_result import percent_removed, truncation_dims
from tests.support import families
from tests.support.sts import LocalSTS, cells, cells_of_mteb

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
        pca, cut = PCA.fit(tiny, TEXTS, Size(num_layers, 32)), truncate(tiny, num_layers=num_layers)
        sample, others = cut.encode(TEXTS).astype(np.float64), cut.encode(["red river", "the old house"])
        expected = decomposition.PCA().fit(sample)
        projected = pca(torch.from_numpy(others)).numpy()
        wanted = expected.transform(others)
        stable = expected.explained_variance_ > 1e-7 * expected.explained_variance_[0]
        assert stable.sum() >= 30
        assert np.abs(projected - wanted * np.sign(projected * wanted))[:, stable].max() < 1e-4
        assert (pca.components.gather(0, pca.components.abs().argmax(0, keepdim=True)) > 0).all()


def test_name_depends_on_sample(tiny: SentenceTransformer) -> None:
    name = PCA.fit(tiny, TEXTS, Size(4, 32)).name
    assert name.startswith("pca-")
    assert PCA.fit(tiny, [*reversed(TEXTS), TEXTS[0]], Size(4, 32)).name == name
    assert PCA.fit(tiny, [*TEXTS, "one more"], Size(4, 32)).name != name


def test_truncations_can_be_pickled(tiny: SentenceTransformer) -> None:
    for truncation in (random_subset(4, 32), window(9, 32), PCA.fit(tiny, TEXTS, Size(4, 32))):
        again = pickle.loads(pickle.dumps(truncation))
        assert again.name == truncation.name
        assert torch.equal(again(embeddings()), truncation(embeddings()))


def test_components_of_a_broken_model_are_refused(tiny: SentenceTransformer) -> None:
    with torch.no_grad():
        next(tiny.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="is not finite"):
        PCA.fit(tiny, TEXTS, Size(4, 32))


def one_small_set() -> LocalSTS:
    task = LocalSTS().filter_eval_splits(["test"])
    task.hf_subsets = ["one"]
    return task


class Narrowed(torch.nn.Module):
    """A last module that multiplies embeddings with a matrix."""

    def __init__(self, matrix: np.ndarray[Any, Any], mean: np.ndarray[Any, Any] | float = 0.0) -> None:
        super().__init__()
        self.matrix, self.mean = torch.tensor(matrix, dtype=torch.float32), torch.tensor(mean, dtype=torch.float32)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return {**features, "sentence_embedding": (features["sentence_embedding"] - self.mean) @ self.matrix}

    def get_embedding_dimension(self) -> int:
        return self.matrix.shape[1]


def narrowed(model: SentenceTransformer, num_layers: int, matrix: Any, mean: Any = 0.0) -> SentenceTransformer:
    cut = truncate(model, num_layers=num_layers)
    return SentenceTransformer(modules=[*cut.children(), Narrowed(matrix, mean)], device="cpu")


def test_cell_matches_model_with_narrowing_module(tiny: SentenceTransformer) -> None:
    task = LocalSTS()
    result = evaluate_truncations(
        tiny, task, dims=[24, 5], num_layers=3, seeds=[0, 7], windows=[10], pca_texts=TEXTS, show_progress_bar=False
    )
    generator = {seed: random.Random(seed) for seed in (0, 7)}
    orders = {f"random-{seed}": np.argsort([draw.random() for _ in range(32)]) for seed, draw in generator.items()}
    orders |= {"window-10": np.roll(np.arange(32), -10), "first": np.arange(32)}
    models = {
        (name, dim): narrowed(tiny, 3, np.eye(32)[:, order[:dim]])
        for name, order in orders.items()
        for dim in ((32, 24, 5) if name == "first" else (24, 5))
    }
    of_scikit = decomposition.PCA().fit(truncate(tiny, num_layers=3).encode(TEXTS).astype(np.float64))
    (name,) = (name for name in result.grid.truncations if name.startswith("pca-"))
    models |= {(name, dim): narrowed(tiny, 3, of_scikit.components_[:dim].T, of_scikit.mean_) for dim in (32, 24, 5)}
    frame = result.grid.to_frame()
    assert {(row.truncation, row.dim) for row in frame.itertuples()} == set(models)
    found = {}
    for (name, dim), model in models.items():
        found[name, dim] = cells(result.grid.at(truncation=name), Size(3, dim), "STS13")
        assert found[name, dim] == pytest.approx(cells_of_mteb(model, task), abs=1e-5), (name, dim)
    assert len({cell["test", "one", "pearson"] for cell in found.values()}) == len(found)


def test_verdict_detects_ordered_coordinates(tiny: SentenceTransformer) -> None:
    """Pairs are graded by the model; the rotated model has most of each cosine in its first coordinates."""
    task = one_small_set()
    task.load_data()
    data = task.dataset["one"]["test"]  # type: ignore[index]
    one, two = (tiny.encode(list(data[column]), normalize_embeddings=True) for column in ("sentence1", "sentence2"))
    graded = data.remove_columns("score").add_column("score", (one * two).sum(axis=1).tolist())
    task.dataset["one"]["test"] = graded  # type: ignore[index]
    rotation = np.linalg.svd(tiny.encode(TEXTS), full_matrices=False)[2].T
    orders = {}
    for name, matrix in (("as it is", np.eye(32)), ("rotated", rotation)):
        rotated = narrowed(tiny, 4, matrix)
        result = evaluate_truncations(rotated, task, dims=[8], seeds=8, windows=[], show_progress_bar=False)
        assert result.grid.score("4L-32d") == pytest.approx(1.0, abs=1e-6)
        orders[name] = result.verdict()["order"].item()
    assert orders == {"as it is": "no difference", "rotated": "helps"}


def test_the_papers_dims_five_seeds_and_three_windows_by_default(
    tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_if_scored(model: SentenceTransformer, tasks: Any, views: Sequence[Any], **kwargs: Any) -> GridResult:
        cell = {"task": "T", "split": "test", "subset": "default", "metric": "pearson", "score": 0.5, "is_main": True}
        axes = [{"truncation": view.truncation.name, **asdict(view.size)} for view in views]
        return GridResult(pd.DataFrame([cell | view for view in axes]))

    monkeypatch.setattr("st_matryoshka2d.evaluation.truncations.score_variants", as_if_scored)
    result = evaluate_truncations(tiny, LocalSTS())
    assert result.grid.truncations == ["first", *(f"random-{n}" for n in range(5)), "window-8", "window-16", "window-24"]
    assert [size.dim for size in result.grid.at(truncation="first").sizes] == truncation_dims(32)[::-1]
    assert [size.dim for size in result.grid.at(truncation="random-3").sizes] == truncation_dims(32)[:0:-1]
    assert result.full == Size(4, 32)
    assert "PCA was not scored" in str(result)


def test_components_of_another_sample_are_not_served_from_the_cache(tiny: SentenceTransformer, tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"dims": [4], "seeds": 2, "windows": [], "cache": tmp_path, "show_progress_bar": False}
    one, other, again = (
        evaluate_truncations(tiny, one_small_set(), pca_texts=texts, **wanted)
        for texts in (TEXTS[:40], TEXTS[40:], TEXTS[:40])
    )
    scores = [result.to_frame().query("method == 'pca' and dim == 4")["score"].item() for result in (one, other, again)]
    assert scores[0] != scores[1]
    assert scores[0] == scores[2]
