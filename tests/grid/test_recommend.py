"""Recommendations, compared with loops over all sizes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from st_matryoshka2d import GridResult, Size, UsageError
from st_matryoshka2d.grid.costs import costs, document_size
from tests.support.grids import BITS, curve, random_grid, random_times, timed, with_scores
from tests.support.quick import quick

DEPTHS = (1, 2, 4)


def cheapest(
    grid: GridResult, min_score: float | None, max_ms: float | None, max_bytes: float | None
) -> dict[Any, Any] | None:
    """Return the best size that meets the limits, by a loop."""
    best, best_key = None, None
    table = costs(grid.frame, grid.latency)
    largest = table[(table["num_layers"] == 4) & (table["dim"] == 64) & (table["precision"] == "float32")]
    for row in table.to_dict("records"):
        if np.isnan(row["score"]) or (min_score is not None and row["score"] < min_score * float(largest["score"].iloc[0])):
            continue
        if max_ms is not None and row["milliseconds_per_text"] > max_ms:
            continue
        if max_bytes is not None and row["bytes"] > max_bytes:
            continue
        time = row["num_layers"] if grid.latency is None else row["milliseconds_per_text"]
        key = (time, row["bytes"], -row["score"]) if min_score is not None else (-row["score"], time, row["bytes"])
        if best_key is None or key < best_key:
            best, best_key = row, key
    return best


@pytest.mark.parametrize(("latency", "seed"), quick(product([True, False], range(2)), (True, 0), (False, 1)))
def test_choice_matches_loop_over_sizes(latency: bool, seed: int) -> None:
    found_none = 0
    grid = timed(seed, decimals=2, precisions=tuple(BITS))
    if not latency:
        grid = GridResult(grid.to_frame())
    for min_score, max_ms, max_bytes in product((None, 0.9, 1.2), (None, 1.1) if latency else (None,), (1, 80)):
        expected = cheapest(grid, min_score, max_ms, max_bytes)
        if expected is None:
            found_none += 1
            with pytest.raises(ValueError, match="No size of 27 meets every limit"):
                grid.recommend(min_score, max_ms=max_ms, max_bytes=max_bytes)
            continue
        choice = grid.recommend(min_score, max_ms=max_ms, max_bytes=max_bytes)
        assert (choice.size, choice.precision) == (Size(expected["num_layers"], expected["dim"]), expected["precision"])
        assert len(choice.to_frame()) == 27
    assert found_none > 0


@pytest.mark.parametrize("cost", ["bytes", "megabytes"])
def test_another_cost_counts_first(cost: str) -> None:
    choice = timed(3, decimals=2, precisions=tuple(BITS)).recommend(0.5, cost=cost)
    good = [row for row in choice.to_frame().to_dict("records") if not row["refused"]]
    best = min(good, key=lambda row: (row[cost], row["milliseconds_per_text"], row["bytes"]))
    assert choice.size == Size(best["num_layers"], best["dim"])
    assert len({row[cost] for row in good}) > 1


def test_an_unknown_cost_is_refused() -> None:
    with pytest.raises(ValueError, match=r"A cost is one of .*, got 'size'"):
        random_grid(0).recommend(0.5, cost="size")
    with pytest.raises(ValueError, match="has no megabytes; add the times"):
        random_grid(0).recommend(0.5, cost="megabytes")


def test_the_bytes_of_a_file_are_a_limit() -> None:
    grid = timed(0)  # of 1, 2 and 4 layers, with 0.0044, 0.0048 and 0.0056 MB
    choice = grid.recommend(None, max_megabytes=0.005)
    frame = choice.to_frame()
    assert frame["megabytes"].tolist() == [4e-6 * (1000 + 100 * depth) for depth in frame["num_layers"]]
    assert choice.size.num_layers < 4
    assert str(choice).endswith(f"{frame['megabytes'][0]:.3g} MB instead of 0.0056")
    refused = frame[frame["num_layers"] == 4]["refused"]
    assert set(refused) == {"file 0.0056 MB, at most 0.005 MB wanted"}
    with pytest.raises(UsageError, match=r"file at most 0.001 MB. Relax it: file at most 0.0044 MB \(1L"):
        grid.recommend(None, max_megabytes=0.001)
    with pytest.raises(UsageError, match="max_megabytes must be a number above 0 such as 60"):
        grid.recommend(None, max_megabytes=0)
    assert grid.pareto("megabytes")["megabytes"].is_monotonic_increasing


def test_a_choice_says_which_layers_were_scored() -> None:
    choice = replace(random_grid(0), layers="ends").recommend(0.1)
    assert "layers='ends'" in str(choice)
    assert "layers=" not in str(random_grid(0).recommend(0.1))


def test_recommendation_as_text() -> None:
    assert str(curve().recommend(0.8)) == (
        "2L-64d int8: 82.5 % of the score of 4L-64d (the largest of the grid), 0.9 ms per text instead of 1.75, "
        "64 bytes per vector instead of 256, 0.0048 MB instead of 0.0056"
    )
    assert repr(curve().recommend(1.0)) == (
        "4L-64d: 100.0 % of the score of 4L-64d (the largest of the grid), 1.75 ms per text, 256 bytes per vector, 0.0056 MB"
    )
    untimed = GridResult(curve().to_frame())
    assert str(untimed.recommend(0.85)) == (
        "2L-64d: 87.5 % of the score of 4L-64d (the largest of the grid), 2 layers instead of 4, 256 bytes per vector"
    )
    assert str(untimed.at(precision="int8").recommend(1)).startswith("4L-64d int8: 100.0 %")


@pytest.mark.parametrize(
    ("full_size", "told"),
    [("4L-64d", "the full size"), ("6L-384d", "the largest of the grid, which lacks the full 6L-384d")],
)
def test_names_reference_size_of_shares(full_size: str, told: str) -> None:
    grid = replace(curve(), full_size=full_size)
    assert f" 100.0 % of the score of 4L-64d ({told}), " in str(grid.recommend(1))
    assert f" % of the reference's score at 4L-64d ({told}), " in str(curve().recommend(0.5, reference=grid))


def test_share_of_another_models_full_size() -> None:
    """Training that raises the full size must not make the same small size fail."""
    after = curve()
    before = with_scores(after, lambda frame: 0.9 * frame["score"]).named("as it was")
    assert str(after.recommend(0.97).size) == "4L-64d"
    assert str(after.recommend(0.97, reference=before)) == (
        "2L-64d: 97.2 % of the reference's score at 4L-64d (the largest of the grid), 0.9 ms per text instead of 1.75, "
        "256 bytes per vector, 0.0048 MB instead of 0.0056"
    )
    shares = after.recommend(0.97, reference=before).to_frame().set_index(["num_layers", "dim", "precision"])["relative"]
    assert shares[4, 64, "float32"] == pytest.approx(1 / 0.9)
    same, alone = after.recommend(0.8, reference=after), after.recommend(0.8)
    pd.testing.assert_frame_equal(same.to_frame(), alone.to_frame())


def test_reasons_for_rejected_sizes() -> None:
    frame = curve().recommend(0.8, max_ms=1, max_bytes=100).to_frame().set_index(["num_layers", "dim", "precision"])
    assert frame.index[0] == (2, 64, "int8")
    assert frame["refused"][2, 64, "int8"] == ""
    assert frame["refused"][2, 64, "float32"] == "vector 256 bytes, at most 100 bytes wanted"
    assert frame["refused"][1, 8, "int8"] == "share of the score 45 %, at least 80 % wanted"
    assert (
        frame["refused"][4, 64, "float32"] == "time 1.75 ms, at most 1 ms wanted; vector 256 bytes, at most 100 bytes wanted"
    )
    assert (frame["refused"] == "").sum() == 1


def test_sizes_without_a_score_are_never_chosen() -> None:
    grid = with_scores(curve(), lambda frame: frame["score"].where(frame["num_layers"] != 1, np.nan))
    choice = grid.recommend(0.01)
    assert choice.size == Size(2, 8)
    assert set(choice.to_frame().query("num_layers == 1")["refused"]) == {"no score"}
    assert 1 not in set(grid.pareto()["num_layers"])
    with pytest.raises(ValueError, match=r"Relax it: time at most 0.9 ms \(2L-8d int8\)\.$"):
        grid.recommend(None, max_ms=0.6)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"min_score": 0.9, "max_ms": 1}, ["one: ", "at least 87.5 % (2L-64d), or ", "at most 1.75 ms (4L-64d int8)."]),
        ({"min_score": 0.99, "max_ms": 1, "max_bytes": 70}, ["Relax one: ", "at least 82.5 % (2L-64d int8)."]),
        ({"min_score": 1.2, "max_ms": 0.1}, ["Relax several", "at least 100 % (4L-64d), ", "at most 0.5 ms (1L-8d int8)."]),
    ],
)
def test_error_suggests_alternatives(limits: dict[str, float], told: list[str]) -> None:
    """What each limit would have to be if the others stay, or all if one is not enough."""
    with pytest.raises(ValueError, match="^No size of 18 .*" + ".*".join(map(re.escape, told)) + r" A healed size.*$"):
        curve().recommend(**limits)


def across(seed: int) -> GridResult:
    """Return a grid with several document sizes, one of them narrower than some queries."""
    parts = [
        random_grid(seed + number, decimals=1).to_frame().assign(documents=documents)
        for number, documents in enumerate(("same size", "4L-64d", "2L-20d"))
    ]
    return GridResult(pd.concat(parts)).with_latency(random_times(seed))


@pytest.mark.parametrize(("seed", "queries_per_document"), quick(product(range(6), (0.01, 1, 50)), (1, 1)))
def test_chooses_cheapest_pair_of_sizes(seed: int, queries_per_document: float) -> None:
    grid = across(seed)
    assert grid.latency is not None
    ms = dict(zip(grid.latency["num_layers"], grid.latency["milliseconds_per_text"], strict=True))
    full, expected = grid.at(documents="4L-64d").score("4L-64d"), []
    for size, documents in product(grid.sizes, grid.document_sizes):
        own = size if documents == "same size" else Size.parse(documents)
        own = Size(own.num_layers, min(own.dim, size.dim))
        score = grid.at(documents=documents).score(size)
        time = ms[own.num_layers] + queries_per_document * ms[size.num_layers]
        if score >= 0.8 * full and 4 * own.dim <= 100:
            expected.append((time, 4 * own.dim, -score, size.dim, size, own))
    best = grid.recommend(0.8, max_bytes=100, queries_per_document=queries_per_document)
    time, size_in_bytes, score, *_ = min(expected, key=lambda pair: pair[:4])
    row = best.to_frame().iloc[0]
    assert (row["milliseconds_in_all"], row["bytes"], -row["score"]) == pytest.approx((time, size_in_bytes, score))
    assert (best.size, best.documents) in [
        pair[4:] for pair in expected if pair[:3] == pytest.approx((time, size_in_bytes, score))
    ]
    assert (f"{best.documents} for documents" in str(best)) is (best.size != best.documents)
    assert "ms a document and its queries" in str(best)


@pytest.mark.parametrize("documents", ["4L-64d", "2L-20d"])
def test_a_grid_of_one_document_size_says_which(documents: str) -> None:
    grid = GridResult(random_grid(0).to_frame().assign(documents=documents)).with_latency(random_times(0))
    best = grid.recommend(0.1)
    own = Size.parse(documents)
    assert best.documents == Size(own.num_layers, min(own.dim, best.size.dim))
    assert f"{best.size} for queries, {best.documents} for documents" in str(best)
    assert set(best.to_frame()["documents"]) == set(grid.pareto()["documents"]) == {documents}
    assert best.to_frame()["bytes"][0] == 4 * best.documents.dim


@pytest.mark.parametrize("order", [("4L-64d", "2L-64d", "same size"), ("2L-64d", "4L-64d"), ("2L-64d", "1L-64d")])
def test_shares_of_pairs_refer_to_the_deepest_documents(order: tuple[str, ...]) -> None:
    parts = [random_grid(number).to_frame().assign(documents=documents) for number, documents in enumerate(order)]
    grid = GridResult(pd.concat(parts), full_size="4L-64d").with_latency(random_times(0))
    best = grid.recommend(0.1, queries_per_document=1)
    deepest = max(set(order) - {"same size"})
    whole = grid.at(documents=deepest).score("4L-64d")
    row = best.to_frame().iloc[0]
    assert row["relative"] == pytest.approx(row["score"] / whole)
    assert ("(the full size)" in str(best)) is ("4L-64d" in order)


def test_documents_may_have_times_of_their_own() -> None:
    grid = across(0)
    assert grid.latency is not None
    times = grid.latency.assign(milliseconds_per_text=[100.0, 200.0, 400.0])
    timed = grid.with_latency(grid.latency, documents=times)
    pd.testing.assert_frame_equal(timed.to_frame(), grid.to_frame())
    few, many = (scores.recommend(0.5, queries_per_document=2).to_frame() for scores in (grid, timed))
    at = ["num_layers", "dim", "documents"]
    both = few.merge(many, on=at, suffixes=("", "_of_documents"))
    depths = [document_size(row).num_layers for row in both.itertuples()]
    per_text = [table.set_index("num_layers")["milliseconds_per_text"] for table in (grid.latency, times)]
    own, other = (of_depth[depths].to_numpy() for of_depth in per_text)
    np.testing.assert_allclose(both["milliseconds_in_all_of_documents"] - both["milliseconds_in_all"], other - own)
    with pytest.raises(ValueError, match="no times for documents of 4 layers"):
        grid.with_latency(grid.latency, documents=times[times["num_layers"] < 4]).recommend(0.1, queries_per_document=2)
