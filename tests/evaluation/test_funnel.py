"""A funnel equals two physically cut models: one searches, the other re-ranks the shortlist."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import pytrec_eval
import torch
from mteb import ResultCache
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import FunnelResult, Size, align, evaluate_funnel, truncate
from st_matryoshka2d.evaluation import search
from st_matryoshka2d.evaluation.funnel import funnel_scores
from st_matryoshka2d.evaluation.rankings import Candidates, Rankings
from st_matryoshka2d.evaluation.search_state import Found
from tests.support import families
from tests.support.labels import aggregate
from tests.support.pipelines import turned
from tests.support.quick import quick
from tests.support.search import (
    DOCUMENTS,
    EQUAL_TO_A_QUERY,
    Collection,
    FewResults,
    LocalReranking,
    LocalRetrieval,
    ManySubsets,
    SkipFirst,
)
from tests.support.sts import LocalSTS, quiet, read_along
from tests.support.task_types import marks

pytestmark = marks

SIZES = ["2L-8d", "2L-32d", "4L-16d", "4L-32d"]
PAIRS = {*(("2L-8d", "2L-32d"), ("2L-8d", "4L-16d"), ("2L-8d", "4L-32d")), *(("2L-32d", "4L-32d"), ("4L-16d", "4L-32d"))}
MEASURES = ["recall_at_k1", "ndcg", "recall", "ndcg_alone", "recall_alone"]
Ranking = dict[str, dict[str, float]]


def funnel(*args: Any, **kwargs: Any) -> FunnelResult:
    return evaluate_funnel(*args, show_progress_bar=False, **kwargs)


def as_int8(x: NDArray[np.floating]) -> NDArray[np.floating]:
    low, high = x.min(0), x.max(0)
    return np.floor((x - low) / ((high - low) / np.float32(255))) - 128


CODES: dict[str, Callable[[NDArray[np.floating]], NDArray[np.floating]]] = {
    "float32": lambda x: x,
    "int8": as_int8,
    "binary": lambda x: (x > 0).astype(np.float32),
}


class Oracle:
    """Queries and documents of one split, ranked by physically cut models."""

    def __init__(
        self, model: SentenceTransformer, task: Any, subset: str, split: str, document_layers: int | None = None
    ) -> None:
        self.scores, self.document_layers = cache(self.rank), document_layers
        data = task.dataset[subset][split]
        self.model, self.own_ids = model, task.ignore_identical_ids
        self.relevance: Mapping[str, Mapping[str, int]] = {q: found for q, found in data["relevant_docs"].items() if found}
        self.queries = {row["id"]: row["text"] for row in data["queries"] if row["id"] in self.relevance}
        self.documents = {row["id"]: f"{row['title']} {row['text']}".strip() for row in data["corpus"]}

    def rank(self, view: str) -> Ranking:
        size, _, precision = view.partition(" ")
        layers, dim = map(int, size.replace("d", "").split("L-"))
        sides = [
            CODES[precision or "float32"](truncate(self.model, depth, dim).encode(list(texts.values())))
            for depth, texts in ((layers, self.queries), (self.document_layers or layers, self.documents))
        ]
        one, two = (side / np.linalg.norm(side, axis=1, keepdims=True).clip(1e-12) for side in sides)
        return {
            query: {doc: float(s) for doc, s in zip(self.documents, row, strict=True) if not (self.own_ids and doc == query)}
            for query, row in zip(self.queries, one @ two.T, strict=True)
        }

    def judge(self, ranking: Ranking, measure: str, k: int) -> float:
        by_query = pytrec_eval.RelevanceEvaluator(self.relevance, {f"{measure}.{k}"}).evaluate(ranking)
        return float(np.mean([scores[f"{measure}_{k}"] for scores in by_query.values()]))

    def expected(self, first: str, second: str, k1: int, k: int) -> dict[str, float]:
        by_first, by_second = self.scores(first), self.scores(second)
        short = {query: sorted(found, key=found.__getitem__)[-k1:] for query, found in by_first.items()}
        out = {query: {doc: by_second[query][doc] for doc in docs} for query, docs in short.items()}
        assert self.judge(out, "ndcg_cut", k) == pytest.approx(self.ndcg(out, k))
        return {
            "recall_at_k1": self.judge(out, "recall", k1),
            "ndcg": self.judge(out, "ndcg_cut", k),
            "recall": self.judge(out, "recall", k),
            "ndcg_alone": self.judge(by_second, "ndcg_cut", k),
            "recall_alone": self.judge(by_second, "recall", k),
        }

    def ndcg(self, ranking: Ranking, k: int) -> float:
        """Compute nDCG by its equation."""
        total = 0.0
        for query, found in ranking.items():
            grades, dcg, ideal = self.relevance[query], 0.0, 0.0
            for rank, (_, doc) in enumerate(sorted(((s, doc) for doc, s in found.items()), reverse=True)[:k], 1):
                dcg += grades.get(doc, 0) / math.log2(rank + 1)
            for rank, grade in enumerate(sorted(grades.values(), reverse=True)[:k], 1):
                ideal += grade / math.log2(rank + 1)
            total += dcg / ideal if ideal else 0.0
        return total / len(ranking)


class Neighbours(FewResults):
    """Queries equal a document, which is excluded; all others of its topic are relevant."""

    def make(self, collection: Collection) -> RetrievalSplitData:
        for name in EQUAL_TO_A_QUERY:
            topic = collection.topic_of[name]
            collection.judgments[name] = {doc: 1 for doc, other in collection.topic_of.items() if other == topic}
        return collection.split()


@pytest.mark.parametrize("make_task", quick([LocalRetrieval, FewResults, Neighbours, ManySubsets], Neighbours))
def test_funnel_matches_two_cut_models(tiny: SentenceTransformer, make_task: Any) -> None:
    result = funnel(tiny, make_task(), SIZES, shortlists=[7, 25], k=5)
    task = make_task()
    task.load_data()
    frame = result.to_frame()
    places = [(subset, split) for subset in task.hf_subsets for split in task.eval_splits]
    assert set(zip(frame["first"], frame["second"], strict=True)) == PAIRS
    assert len(frame) == len(places) * len(PAIRS) * 2
    oracles = {(subset, split): Oracle(tiny, task, subset, split) for subset, split in places}
    for row in frame.to_dict("records"):
        oracle = oracles[row["subset"], row["split"]]
        expected = oracle.expected(row["first"], row["second"], row["k1"], row["k"])
        assert {name: row[name] for name in MEASURES} == pytest.approx(expected, abs=1e-6), row
        assert (row["queries"], row["documents"]) == (len(oracle.queries), DOCUMENTS)
    assert frame["ndcg"].nunique() > len(frame) / 2
    means = frame.groupby(["first", "second", "k1"])["ndcg"].mean()
    for row in result.summary().to_dict("records"):
        assert row["ndcg"] == pytest.approx(means[row["first"], row["second"], row["k1"]])


@pytest.mark.parametrize(
    ("documents", "precision"), quick(product(["4L-32d", Size(3, 32)], ["float32", "int8"]), (Size(3, 32), "int8"))
)
def test_documents_of_one_size_in_both_stages(tiny: SentenceTransformer, documents: Size | str, precision: str) -> None:
    texts = [" ".join(pair) for pair in product(families.WORDS[:12], families.WORDS[:12])]
    model = turned(align(tiny, texts))
    model.prompts = {"query": "the old ", "document": "a river "}
    asked: dict[str, Any] = {"shortlists": [7, 25], "k": 5, "precisions": precision}
    result = funnel(model, LocalRetrieval(), SIZES, documents=documents, **asked)
    task = LocalRetrieval()
    task.load_data()
    oracle = Oracle(model, task, "default", "test", Size.parse(str(documents)).num_layers)
    oracle.queries = {name: f"the old {text}" for name, text in oracle.queries.items()}
    oracle.documents = {name: f"a river {text}" for name, text in oracle.documents.items()}
    rows = result.to_frame().to_dict("records")
    assert {(row["first"].split()[0], row["second"].split()[0]) for row in rows} == PAIRS
    for row in rows:
        expected = oracle.expected(row["first"], row["second"], row["k1"], 5)
        assert {name: row[name] for name in MEASURES} == pytest.approx(expected, abs=1e-6), row
    own = funnel(model, LocalRetrieval(), SIZES, **asked)
    assert (own.document_size, result.document_size) == ("same size", str(documents))
    assert (own.frame["ndcg"] != result.frame["ndcg"]).any()


def test_by_default_queries_are_no_wider_than_the_documents(tiny: SentenceTransformer) -> None:
    result = funnel(tiny, LocalRetrieval(), documents="2L-16d", shortlists=10)
    assert (result.firsts, result.seconds) == (["4L-8d"], ["4L-16d"])


def test_integers_make_shortlists_for_floats(tiny: SentenceTransformer) -> None:
    result = funnel(tiny, LocalRetrieval(), ["4L-16d", "4L-32d"], shortlists=[10], precisions=["float32", "int8"])
    task = LocalRetrieval()
    task.load_data()
    oracle = Oracle(tiny, task, "default", "test")
    rows = result.to_frame().to_dict("records")
    assert {(row["first"], row["second"], row["first_bytes"]) for row in rows} == {
        ("4L-16d int8", "4L-32d int8", 16),
        ("4L-16d int8", "4L-16d", 16),
        ("4L-16d int8", "4L-32d", 16),
        ("4L-32d int8", "4L-32d", 32),
        ("4L-16d", "4L-32d", 64),
    }
    for row in rows:
        expected = oracle.expected(row["first"], row["second"], 10, 10)
        assert {name: row[name] for name in MEASURES} == pytest.approx(expected, abs=1e-3), row


def test_documents_that_are_equally_near_in_the_first_stage(tiny: SentenceTransformer) -> None:
    """The number of tied documents at the end of a shortlist is determined, but not which ones."""
    result = funnel(tiny, LocalRetrieval(), ["4L-32d"], shortlists=[10, 30], precisions=["float32", "binary"])
    task = LocalRetrieval()
    task.load_data()
    oracle = Oracle(tiny, task, "default", "test")
    by_bits, bounds = oracle.scores("4L-32d binary"), []
    for k1 in (10, 30):
        worst, best = [], []
        for query, found in by_bits.items():
            positive = {doc for doc, grade in oracle.relevance[query].items() if grade > 0}
            edge = sorted(found.values())[-k1] - 1e-6
            inside = {doc for doc, score in found.items() if score > edge + 2e-6}
            tied = {doc for doc, score in found.items() if score > edge} - inside
            room, sure, maybe = k1 - len(inside), len(inside & positive), len(tied & positive)
            worst.append((sure + max(0, room - len(tied - positive))) / max(1, len(positive)))
            best.append((sure + min(room, maybe)) / max(1, len(positive)))
        bounds.append((np.mean(worst), np.mean(best)))
    for (low, high), recall in zip(bounds, result.to_frame()["recall_at_k1"], strict=True):
        assert low < high
        assert low - 1e-9 <= recall <= high + 1e-9


def test_second_stage_does_not_break_ties_of_the_first() -> None:
    """All documents tie in the first stage: a shortlist of 10 of 1000 finds one relevant document in 100."""
    generator = torch.Generator().manual_seed(0)
    queries, documents = 200, 1000
    relevant = torch.randint(documents, (queries,), generator=generator)
    by_second = torch.rand(queries, documents, generator=generator)
    by_second[torch.arange(queries), relevant] = 2.0
    scores = torch.stack([torch.zeros_like(by_second), by_second])
    rankings, candidates = Rankings.none(2, queries), Candidates.none(2, queries)
    for start in range(0, documents, 100):
        rows = torch.arange(start, start + 100, dtype=torch.int32).expand(queries, -1)
        rankings = rankings.with_documents(rows, scores[:, :, start : start + 100], 10)
        candidates = candidates.with_documents(rows, scores[:, :, start : start + 100], 10)
    names = [f"q{i}" for i in range(queries)]
    ids = {row: f"d{row}" for row in sorted(rankings.rows.unique().tolist())}
    found = Found(names, [rankings], [candidates], ids)
    relevance = {name: {f"d{row}": 1} for name, row in zip(names, relevant.tolist(), strict=True)}
    tied, alone = funnel_scores(found, relevance, [(0, 1, 10), (1, 1, 10)], 5, ignore_identical_ids=False)
    assert tied["recall_at_k1"] < 0.05
    assert alone == {"recall_at_k1": 1.0, "ndcg": 1.0, "recall": 1.0}


@pytest.mark.parametrize("k", [1, 10])
def test_ties_in_the_second_stage_are_broken_as_trec_eval_breaks_them(k: int) -> None:
    rng = np.random.default_rng(0)
    queries, documents, k1 = 40, 30, 12
    first, second = (
        rng.permuted(np.tile(np.arange(documents), (queries, 1)), axis=1),
        rng.integers(4, size=(queries, documents)),
    )
    scores = torch.from_numpy(np.stack([first, second]).astype(np.float32))
    rows = torch.arange(documents, dtype=torch.int32).expand(queries, -1)
    found = Found(
        [f"q{i}" for i in range(queries)],
        [Rankings.none(2, queries).with_documents(rows, scores, documents)],
        [Candidates.none(2, queries).with_documents(rows, scores, documents)],
        {row: f"d{row}" for row in range(documents)},
    )
    relevance = {
        name: {f"d{doc}": int(rng.integers(4)) for doc in rng.choice(documents, 9, replace=False)}
        for name in found.query_ids
    }
    (ours,) = funnel_scores(found, relevance, [(0, 1, k1)], k, ignore_identical_ids=False)
    ranking = {
        name: {f"d{doc}": float(second[i, doc]) for doc in first[i].argsort()[-k1:]}
        for i, name in enumerate(found.query_ids)
    }
    by_query = pytrec_eval.RelevanceEvaluator(relevance, {f"ndcg_cut.{k}", f"recall.{k},{k1}"}).evaluate(ranking)
    expected = pd.DataFrame(by_query).T.mean()
    assert (ours["ndcg"], ours["recall"]) == pytest.approx((expected[f"ndcg_cut_{k}"], expected[f"recall_{k}"]))
    assert ours["recall_at_k1"] == pytest.approx(expected[f"recall_{k1}"])


def test_a_shortlist_of_everything_is_a_search_with_the_second_size_alone(tiny: SentenceTransformer) -> None:
    with pytest.warns(UserWarning, match=rf"has a corpus of \d+ documents\. Shortlists of {DOCUMENTS + 10} contain all"):
        result = funnel(tiny, [LocalRetrieval(), FewResults()], SIZES, shortlists=DOCUMENTS + 10, k=3)
    frame = result.to_frame()
    np.testing.assert_array_equal(frame["ndcg"], frame["ndcg_alone"])
    np.testing.assert_array_equal(frame["recall"], frame["recall_alone"])
    assert set(frame["ndcg_kept"]) == {1.0}
    assert (frame["second_multiply_adds"] == frame["alone_multiply_adds"]).all()
    grid = quiet(tiny, [LocalRetrieval(), FewResults()], sizes=SIZES)
    for row in result.summary().to_dict("records"):
        size = Size.parse(row["second"])
        for name in ("ndcg", "recall"):
            of_mteb = grid.pivot(metric=f"{name}_at_3")[size.dim][size.num_layers]
            assert row[f"{name}_alone"] == pytest.approx(of_mteb, abs=2e-5)


def test_chunks_give_same_result(tiny: SentenceTransformer) -> None:
    one = funnel(tiny, FewResults(), SIZES, shortlists=[5, 20], k=5)
    several = funnel(tiny, FewResults(), SIZES, shortlists=[5, 20], k=5, corpus_chunk_size=17)
    pd.testing.assert_frame_equal(one.to_frame(), several.to_frame(), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:NFCorpus has a corpus of 90 documents")
def test_by_default_all_layers_and_every_power_of_two(tiny: SentenceTransformer) -> None:
    result = funnel(tiny, LocalRetrieval())
    assert (result.firsts, result.seconds, result.shortlists) == (["4L-8d", "4L-16d"], ["4L-16d", "4L-32d"], [20, 50, 100])


def test_aggregate_tasks_and_benchmarks(tiny: SentenceTransformer) -> None:
    mean: Any = aggregate()
    mean.tasks = [LocalRetrieval(), FewResults()]
    whole = funnel(tiny, mean, SIZES, shortlists=10)
    parts = funnel(tiny, [LocalRetrieval(), FewResults()], SIZES, shortlists=10)
    assert whole.tasks == ["MeanOfThree"]
    assert sorted(set(whole.frame["subset"])) == ["NFCorpus/default", "SciFact/default"]
    np.testing.assert_array_equal(whole.frame["ndcg"], parts.frame["ndcg"])


def prompted_texts(model: SentenceTransformer) -> tuple[set[str], list[str]]:
    """Return the model's inputs for queries and documents, with different prompts."""
    model.prompts = {"query": "the old ", "document": "a river "}
    task = LocalRetrieval()
    task.load_data()
    oracle = Oracle(model, task, "default", "test")
    queries = {f"the old {text}" for text in oracle.queries.values()}
    return queries, [f"a river {text}" for text in oracle.documents.values()]


def test_texts_go_through_the_model_once_and_not_again_with_a_cache(tiny: SentenceTransformer, tmp_path: Path) -> None:
    queries, documents = prompted_texts(tiny)
    seen = read_along(tiny)
    asked: dict[str, Any] = {"sizes": SIZES, "shortlists": [10, 20], "cache": tmp_path}
    first = funnel(tiny, LocalRetrieval(), **asked)
    assert {seen[text] for text in queries.union(documents)} == {1}
    again = funnel(tiny, LocalRetrieval(), **{**asked, "cache": ResultCache(tmp_path)})
    assert {seen[text] for text in queries.union(documents)} == {1}
    pd.testing.assert_frame_equal(again.to_frame(), first.to_frame(), check_exact=True)
    other = funnel(tiny, LocalRetrieval(), **{**asked, "shortlists": [12], "documents": "4L-32d"})
    assert {seen[text] for text in queries.union(documents)} == {2}
    assert other.shortlists == [12]
    kept = {path: FunnelResult.load(path) for path in tmp_path.rglob("funnels-*.parquet")}
    assert {one.document_size for one in kept.values()} == {"same size", "4L-32d"}
    (broken,) = (path for path, one in kept.items() if one.shortlists == [10, 20])
    broken.write_bytes(broken.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"funnels-.*\.parquet cannot be read. Delete it"):
        funnel(tiny, LocalRetrieval(), **asked)


@pytest.mark.parametrize("between_saves", [0.0, 1e9])
def test_killed_run_resumes_after_last_chunk(
    tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between_saves: float
) -> None:
    """An unwritten chunk is embedded again, without a difference."""
    monkeypatch.setattr(search, "_BETWEEN_SAVES", between_saves)
    queries, documents = prompted_texts(tiny)
    done, last = queries.union(documents[:60]), set(documents[60:]) - set(documents[:60])
    asked: dict[str, Any] = {"sizes": SIZES, "shortlists": [10, 20], "corpus_chunk_size": 30}
    whole = funnel(tiny, LocalRetrieval(), **asked)
    seen = read_along(tiny)

    def kill(*args: Any) -> None:
        if last & set(seen):
            raise KeyboardInterrupt

    hook = tiny[0].model.get_input_embeddings().register_forward_pre_hook(kill)  # type: ignore[union-attr, operator]
    with pytest.raises(KeyboardInterrupt):
        funnel(tiny, LocalRetrieval(), **asked, cache=tmp_path)
    hook.remove()
    assert done <= set(seen)
    assert list(tmp_path.rglob("texts-*"))
    seen.clear()
    resumed = funnel(tiny, LocalRetrieval(), **asked, cache=tmp_path)
    assert last <= set(seen)
    assert queries.isdisjoint(seen)
    assert set(documents[:60]) <= set(seen) if between_saves else done & set(seen) <= set(documents[60:])
    assert not [*tmp_path.rglob("texts-*"), *tmp_path.rglob("search-*")]
    pd.testing.assert_frame_equal(resumed.to_frame(), whole.to_frame(), rtol=1e-9)


class NotLoaded(LocalRetrieval):
    def load_data(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("The arguments are checked before data is loaded.")


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ({"tasks": [NotLoaded(), LocalSTS()]}, ValueError, "STS13 is a task of type STS; a funnel needs one that searches"),
        ({"tasks": [NotLoaded(), LocalReranking()]}, ValueError, "type Reranking; a funnel needs one that searches"),
        ({"tasks": [NotLoaded(), aggregate()]}, ValueError, "STS13 is a task of type STS"),
        ({"tasks": SkipFirst()}, ValueError, "ArguAna drops the first result"),
        ({"sizes": ["4L-32d"]}, ValueError, "No size is cheaper than another among 4L-32d"),
        ({"sizes": ["4L-8d", "4L-33d"]}, ValueError, "4L-33d has 33 dimensions"),
        ({"sizes": ["4L-8d"], "precisions": ["int8", "uint8"]}, ValueError, "4L-8d int8, 4L-8d uint8"),
        ({"documents": "4L-16d", "sizes": SIZES}, ValueError, "2L-32d is wider than the documents, 4L-16d. Choose narrower"),
        ({"documents": "4L-32d", "sizes": ["2L-32d", "4L-8d"]}, ValueError, "among 4L-8d, 2L-32d: the first"),
        ({"documents": "5L-32d"}, ValueError, "documents: 5L-32d has 5 layers, but the model has 4"),
        ({"documents": ["4L-32d", "2L-32d"]}, TypeError, r"documents must be a Size such as"),
        ({"precisions": "int3"}, ValueError, "precision must be one of"),
        ({"precisions": ["int8", "int8"]}, ValueError, "at least one, each given once"),
        ({"shortlists": []}, ValueError, "at least one"),
        ({"shortlists": [20, 5]}, ValueError, "shortlists has 5, which is below k=10"),
        ({"shortlists": 0}, ValueError, "shortlists must be 1 or more"),
        ({"k": 0}, ValueError, "k must be 1 or more"),
        ({"k": 2.5}, TypeError, "k must be an integer"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"corpus_chunk_size": 0}, ValueError, "corpus_chunk_size"),
        ({"model": "a name"}, TypeError, "Expected a SentenceTransformer"),
    ],
)
def test_refuses_invalid_funnels(
    tiny: SentenceTransformer, wanted: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        funnel(**{"model": tiny, "tasks": NotLoaded(), **wanted})


def test_candidates_that_the_data_brings(tiny: SentenceTransformer) -> None:
    class Hidden(LocalReranking):
        metadata = LocalRetrieval.metadata

    with pytest.raises(ValueError, match="NFCorpus ranks given candidates"):
        funnel(tiny, Hidden())
