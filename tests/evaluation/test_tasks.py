"""Unusual data of mteb tasks: old formats, gaps, partial tasks, and task-specific classifiers and scores."""

from __future__ import annotations

from typing import Any, ClassVar

import mteb
import pytest
from datasets import Dataset
from mteb._evaluators import DeprecatedSummarizationEvaluator
from mteb._evaluators.retrieval_metrics import evaluate_p_mrr_change
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from sentence_transformers import SentenceTransformer
from sklearn.neighbors import KNeighborsClassifier

from st_matryoshka2d import Size
from st_matryoshka2d.evaluation.tasks import chosen_tasks
from tests.support import labels, search
from tests.support.quick import quick
from tests.support.sts import quiet
from tests.support.task_types import MakeTask, Writer, assert_grid_is_mteb, found, marks, random_sizes, task_metadata

pytestmark = marks


class OldForm(search.LocalRetrieval):
    """Dictionaries in the format of mteb 1, which mteb 2 still accepts: with titles, and texts only."""

    metadata = task_metadata("FiQA2018", "Retrieval", "ndcg_at_10")

    def load_data(self, *args: Any, **kwargs: Any) -> None:
        made = search.Collection(20)
        with_titles = {name: {"title": row["title"], "text": row["text"]} for name, row in made.documents.items()}
        texts_alone = {name: row["text"] for name, row in made.documents.items()}
        self.corpus = {"test": {name: (with_titles if i % 2 else texts_alone)[name] for i, name in enumerate(with_titles)}}
        self.queries = {"test": dict(made.queries)}
        self.relevant_docs = {"test": {name: dict(grades) for name, grades in made.judgments.items()}}
        self.data_loaded = True


class Gaps(search.LocalRetrieval):
    """No titles, an empty document, a document longer than the model's maximum, duplicate queries."""

    metadata = task_metadata("QuoraRetrieval", "Retrieval", "ndcg_at_10")
    first_seed = 21

    def make(self, collection: search.Collection) -> RetrievalSplitData:
        data = collection.split()
        rows = [{"id": row["id"], "text": row["text"]} for row in data["corpus"]]
        rows[5]["text"] = ""
        rows[6]["text"] = " ".join([rows[6]["text"]] * 20)
        queries = list(data["queries"])
        queries[1]["text"] = queries[2]["text"] = queries[0]["text"]
        data["corpus"], data["queries"] = Dataset.from_list(rows), Dataset.from_list(queries)
        return data


class CandidatesWithGaps(search.LocalReranking):
    """A query without candidates, and a query missing from the candidates table."""

    metadata = task_metadata("SciDocsRR", "Reranking", "map_at_1000")
    first_seed = 22

    def make(self, collection: search.Collection) -> RetrievalSplitData:
        data = super().make(collection)
        data["top_ranked"]["q0"] = []
        del data["top_ranked"]["q1"]
        return data


class BeforeAndAfter(search.LocalReranking):
    """Each query with two instructions, as in FollowIR: the main score compares the two rankings."""

    metadata = task_metadata("Robust04InstructionRetrieval", "InstructionReranking", "p-MRR")
    first_seed = 23

    def make(self, collection: search.Collection) -> RetrievalSplitData:
        data = super().make(collection)
        names = [f"q{i}" for i in range(10)]
        rows = [
            {"id": f"{name}-{when}", "text": collection.queries[name], "instruction": collection.writer.text(i % 5)}
            for i, name in enumerate(names)
            for when in ("og", "changed")
        ]
        data["queries"] = Dataset.from_list(rows)
        for table in ("relevant_docs", "top_ranked"):
            data[table] = {row["id"]: data[table][row["id"].split("-")[0]] for row in rows}  # type: ignore[literal-required]
        self.changed = {name: list(collection.judgments[name])[:2] for name in names}
        return data

    def task_specific_scores(self, scores: Any, qrels: Any, results: Any, **kwargs: Any) -> Any:
        return evaluate_p_mrr_change(qrels, results, self.changed, self.k_values)


class BitextInDictionaries(labels.LocalBitext):
    """Sentences to find among more candidates, as in BUCC."""

    metadata = task_metadata("BUCC", "BitextMining", "f1", eval_langs={"de-en": ["eng-Latn"], "fr-en": ["fra-Latn"]})

    def load_data(self, *args: Any, **kwargs: Any) -> None:
        self.dataset = {}
        for seed, subset in enumerate(self.hf_subsets, start=24):
            rows, writer = self.rows(Writer(seed), 50), Writer(seed + 100)
            columns: dict[str, Any] = {column: [row[column] for row in rows] for column in rows[0]}
            columns["sentence2"] += [writer.text(0) for _ in range(30)]
            self.dataset[subset] = {"test": {**columns, "gold": [(i, i) for i in range(50)]}}
        self.data_loaded = True


class OldSummaries(labels.LocalSummaries):
    metadata = task_metadata("SummEvalFr", "Summarization", "cosine_spearman")
    evaluator = DeprecatedSummarizationEvaluator


class NearestNeighbour(labels.LocalClassification):
    """Another classifier, and other column names."""

    metadata = task_metadata("TweetSentimentExtractionClassification", "Classification", "accuracy", eval_splits=["test"])
    evaluator_model = KNeighborsClassifier(n_neighbors=3)
    input_column_name = "sentence"
    label_column_name = "topic"

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        return [{"sentence": row["text"], "topic": row["label"]} for row in super().rows(writer, count)]


class LevelsMissing(labels.LocalClustering):
    """Every third text has no label on the second level; a fixed number of texts is sampled."""

    metadata = task_metadata("BiorxivClusteringP2P.v2", "Clustering", "v_measure")
    splits: ClassVar[dict[str, int]] = {"test": 100}
    max_fraction_of_documents_to_embed = None
    max_document_to_embed = 70

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        rows = super().rows(writer, count)
        return [{**row, "labels": row["labels"][: 1 if i % 3 == 0 else 2]} for i, row in enumerate(rows)]


WHOLE = {"corpus_chunk_size": 4096}
ODD: list[tuple[MakeTask, dict[str, int]]] = [
    *((kind, WHOLE) for kind in (OldForm, Gaps, LevelsMissing, CandidatesWithGaps, BeforeAndAfter)),
    *((kind, WHOLE) for kind in (BitextInDictionaries, OldSummaries, NearestNeighbour)),
    *((kind, {"corpus_chunk_size": 9}) for kind in (OldForm, Gaps)),
    (search.FewResults, {"corpus_chunk_size": 1}),
]


@pytest.mark.parametrize(("make_task", "wanted"), quick(ODD, *ODD[:3]))
def test_unusual_data(tiny: SentenceTransformer, make_task: MakeTask, wanted: dict[str, int]) -> None:
    sizes = random_sizes(tiny)
    assert_grid_is_mteb(quiet(tiny, make_task(), sizes=sizes, **wanted), tiny, make_task, sizes)


def parts_of(kind: MakeTask) -> Any:
    return kind().filter_languages(["fra"]).filter_eval_splits(["test"])


PARTED = [labels.LocalClassification, search.ManySubsets, labels.LocalClustering, labels.LocalBitext]


@pytest.mark.parametrize("kind", quick(PARTED, *PARTED[:2]))
def test_some_languages_and_splits_of_a_task(tiny: SentenceTransformer, kind: MakeTask) -> None:
    size = Size(3, 12)
    grid = quiet(tiny, parts_of(kind), sizes=[size])
    assert_grid_is_mteb(grid, tiny, lambda: parts_of(kind), [size])
    assert len({(split, subset) for _, split, subset, _ in found(grid, size)}) == 1


def test_a_benchmark_gives_its_tasks() -> None:
    tasks = chosen_tasks("NanoBEIR")
    assert len(tasks) == 13
    assert tasks == list(mteb.get_benchmark("NanoBEIR").tasks)
