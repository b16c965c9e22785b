"""A size is chosen without labels, by how well it agrees with the whole model."""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size, truncate
from st_matryoshka2d.model.declared_agreement import declare_agreement
from st_matryoshka2d.model.identity import model_name, model_revision
from tests.support.grids import random_grid, random_times

MEASURED = {Size(n, d): round((n / 4) ** 0.1 * (d / 32) ** 0.2, 4) for n, d in product((1, 2, 4), (8, 16, 32))}

pytestmark = pytest.mark.filterwarnings("ignore:This model was not")


@pytest.fixture
def aligned(tiny: SentenceTransformer) -> SentenceTransformer:
    """A model whose config says what `align` measured."""
    declare_agreement(tiny.config, MEASURED)
    return tiny


def test_the_grid_has_what_was_measured(aligned: SentenceTransformer, tmp_path: Path) -> None:
    grid = GridResult.from_agreement(aligned)
    grid.save(tmp_path / "agreement.json")
    for one in (grid, GridResult.load(tmp_path / "agreement.json")):
        assert {size: one.score(size) for size in one.sizes} == MEASURED
        assert (one.model, one.revision, one.full_size) == (model_name(aligned), model_revision(aligned), "4L-32d")
        assert str(one).splitlines()[0] == "agreement: correlation of similarities, percent"


@pytest.mark.parametrize("min_score", [0.7, 0.8, 0.95, 1.0])
def test_recommends_the_fewest_layers_that_agree(min_score: float, aligned: SentenceTransformer, tmp_path: Path) -> None:
    """At all dims; nobody is warned that there are no intervals, in a grid that is loaded neither."""
    expected = min(size for size, value in MEASURED.items() if value >= min_score and size.dim == 32)
    grid = GridResult.from_agreement(aligned)
    grid.save(tmp_path / "agreement.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = [one.recommend(min_score) for one in (grid, GridResult.load(tmp_path / "agreement.parquet"))]
    for choice in chosen:
        assert choice.size == expected
        assert choice.measure == "agreement"
        first, *told, second = str(choice).splitlines()
        assert (told != []) == (expected.num_layers == 4), "the whole model is not proposed in silence"
        assert first.startswith(f"{expected}: {100 * MEASURED[expected]:.1f} % of the agreement of 4L-32d (the full size), ")
        assert second.startswith("This is the agreement of the layers, at all dims, with the whole model")
        assert "not a score" in second
        frame = choice.to_frame()
        assert set(frame.loc[frame["refused"] == "", "num_layers"]) == {n for n in (1, 2, 4) if n >= expected.num_layers}
        assert all(reason.startswith("share of the agreement ") for reason in set(frame["refused"]) - {""})


# Agreement, and share of the mean Spearman of four STS sets, of two models that were aligned with the sentences of STS-B.
MINILM = {
    "1L-64d": (0.549, 0.889), "1L-128d": (0.669, 0.911), "1L-384d": (0.700, 0.911),
    "3L-64d": (0.595, 0.953), "3L-128d": (0.759, 0.972), "3L-384d": (0.806, 0.975),
    "4L-64d": (0.642, 0.975), "4L-128d": (0.832, 0.994), "4L-384d": (0.887, 0.997),
    "6L-64d": (0.744, 0.975), "6L-128d": (0.926, 0.994), "6L-384d": (1.000, 1.000),
}  # fmt: skip


def test_narrow_sizes_that_keep_the_score_are_not_refused(tiny: SentenceTransformer) -> None:
    """Of all-MiniLM-L6-v2: few dims lose much agreement and little of the score, few layers both."""
    declare_agreement(tiny.config, {Size.parse(name): agreement for name, (agreement, _) in MINILM.items()})
    grid = GridResult.from_agreement(tiny)
    frame = grid.recommend(0.8).to_frame()
    kept = {f"{row.num_layers}L-{row.dim}d" for row in frame.itertuples() if not row.refused}
    assert kept == {name for name in MINILM if not name.startswith("1L")} > {"4L-128d", "6L-64d"}
    assert min(share for name, (_, share) in MINILM.items() if name in kept) > 0.95 > MINILM["1L-384d"][1]
    assert str(grid.recommend(0.8).size) == "3L-384d"
    assert str(grid.recommend(0.8, max_bytes=512).size) == "3L-128d"


def test_a_cut_is_compared_with_its_own_largest_size(aligned: SentenceTransformer) -> None:
    grid = GridResult.from_agreement(truncate(aligned, num_layers=2, dim=16))
    assert {size: grid.score(size) for size in grid.sizes} == {size: MEASURED[size] for size in (Size(2, 8), Size(2, 16))}
    assert str(grid.recommend(0.5)).startswith("2L-16d: 100.0 % of the agreement of 2L-16d (the full size), ")


def test_costs_and_figures_are_those_of_any_grid(aligned: SentenceTransformer, tmp_path: Path) -> None:
    grid = GridResult.from_agreement(aligned).with_latency(random_times(0))
    assert "ms per text" in str(grid.recommend(0.8, max_ms=10))
    front = grid.pareto("num_layers")
    assert [(row.num_layers, row.dim) for row in front.itertuples()] == [(1, 32), (2, 32), (4, 32)]
    assert "agreement" in str(front).splitlines()[0]
    assert "agreement" not in str(random_grid(0).pareto())
    grid.plot(tmp_path / "map.svg")
    grid.plot_pareto(tmp_path / "front.svg")


def test_beside_scores_it_is_one_of_the_tasks(aligned: SentenceTransformer) -> None:
    own, scored = GridResult.from_agreement(aligned), random_grid(0, dims=(8, 16, 32), tasks=("A",))
    both = GridResult.merge([own, GridResult(scored.to_frame(), model=own.model)])
    assert str(both.recommend(0.9, task="agreement")).split("\n")[1:] == str(own.recommend(0.9)).split("\n")[1:]
    for choice in (both.recommend(0.1, task="A"), both.recommend(0.1)):
        assert choice.measure == "score"
        assert "not a score" not in str(choice)
    assert (
        str(own.recommend(0.9, reference=both, task="agreement")).splitlines()[0].count("the reference's agreement at") == 1
    )


def test_refuses_a_model_that_was_not_measured(tiny: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match=r"it was not aligned, or was trained afterwards\. `align` measures it"):
        GridResult.from_agreement(tiny)
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got str"):
        GridResult.from_agreement("a model")  # type: ignore[arg-type]
