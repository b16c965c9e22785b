"""Small classification, clustering and pair tasks, with enough samples that the choice of samples matters."""

from __future__ import annotations

from typing import Any, ClassVar

from datasets import Dataset, DatasetDict
from mteb.abstasks.aggregate_task_metadata import AggregateTaskMetadata
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.clustering import AbsTaskClustering
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy
from mteb.abstasks.multilabel_classification import AbsTaskMultilabelClassification
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.regression import AbsTaskRegression
from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining
from mteb.abstasks.text.summarization import AbsTaskSummarization
from mteb.benchmarks.benchmark import Benchmark
from mteb.types import PromptType

from tests.support.search import FewResults, LocalReranking
from tests.support.sts import AsymmetricSTS, LocalSTS
from tests.support.task_types import Writer, task_metadata

TOPICS = 4
LANGUAGES = {"one": ["eng-Latn"], "two": ["fra-Latn"]}


class Labelled:
    """Builds `self.dataset` from `rows`, for each subset (if any) and split."""

    seed_of_data: ClassVar[int] = 0
    splits: ClassVar[dict[str, int]] = {"test": 60}

    def load_data(self: Any, *args: Any, **kwargs: Any) -> None:
        several = isinstance(self.metadata.eval_langs, dict)
        subsets = {}
        for seed, subset in enumerate(self.hf_subsets, start=self.seed_of_data):
            writer = Writer(seed, TOPICS)
            subsets[subset] = DatasetDict(
                {split: Dataset.from_list(self.rows(writer, count)) for split, count in self.splits.items()}
            )
        self.dataset = subsets if several else subsets["default"]
        self.data_loaded = True


def blended(writer: Writer, label: int, noise: float = 0.25) -> str:
    """Return a text of a topic, sometimes of another topic, so that no classifier is perfect."""
    return writer.text(writer.random.randrange(TOPICS) if writer.random.random() < noise else label)


class LocalClassification(Labelled, AbsTaskClassification):
    """More training texts per label than mteb samples, an unused column, duplicate texts, two test splits."""

    metadata = task_metadata(
        "Banking77Classification", "Classification", "accuracy", eval_splits=["validation", "test"], eval_langs=LANGUAGES
    )
    splits: ClassVar[dict[str, int]] = {"train": 80, "validation": 50, "test": 60}
    n_experiments = 2

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        labels = [writer.random.randrange(TOPICS) for _ in range(count)]
        rows = [{"text": blended(writer, label), "label": label, "source": "here"} for label in labels]
        rows[7], rows[11] = rows[8], rows[12]
        return rows


class BinaryClassification(LocalClassification):
    """Two labels, for which average precision is defined."""

    metadata = task_metadata("ImdbClassification", "Classification", "ap")
    seed_of_data = 2
    splits: ClassVar[dict[str, int]] = {"train": 60, "test": 60}

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        return [{**row, "label": row["label"] % 2} for row in super().rows(writer, count)]


class CrossValidated(LocalClassification):
    metadata = task_metadata("EmotionClassification", "Classification", "f1", eval_splits=["train"])
    seed_of_data = 3
    splits: ClassVar[dict[str, int]] = {"train": 90}
    is_cross_validation = True
    n_splits = 3


class LocalMultilabel(Labelled, AbsTaskMultilabelClassification):
    """One to three labels per text; the sampled training texts depend on a stateful generator."""

    metadata = task_metadata("BrazilianToxicTweetsClassification", "MultilabelClassification", "lrap", eval_langs=LANGUAGES)
    seed_of_data = 4
    splits: ClassVar[dict[str, int]] = {"train": 120, "test": 60}
    n_experiments = 2

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        rows = []
        for _ in range(count):
            labels = sorted(writer.random.sample(range(TOPICS), k=writer.random.randint(1, 3)))
            rows.append({"text": " ".join(writer.text(label, 3, 5) for label in labels), "label": labels})
        return rows


class LocalRegression(Labelled, AbsTaskRegression):
    metadata = task_metadata("RuSciBenchYearPublRegression", "Regression", "kendalltau")
    seed_of_data = 6
    splits: ClassVar[dict[str, int]] = {"train": 150, "test": 60}
    n_samples = 110
    n_experiments = 2

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        texts = [writer.text(writer.random.randrange(TOPICS)) for _ in range(count)]
        return [{"text": text, "value": len(text) / 10 + writer.random.random()} for text in texts]


class LocalClustering(Labelled, AbsTaskClustering):
    """Two levels of labels; the task's generator samples the texts, and samples again from that sample."""

    metadata = task_metadata(
        "ArxivClusteringP2P.v2", "Clustering", "v_measure", eval_splits=["validation", "test"], eval_langs=LANGUAGES
    )
    seed_of_data = 7
    splits: ClassVar[dict[str, int]] = {"validation": 90, "test": 100}
    max_fraction_of_documents_to_embed = 0.8
    max_documents_per_cluster = 60
    n_clusters = 3

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        labels = [writer.random.randrange(TOPICS) for _ in range(count)]
        return [{"sentences": blended(writer, label), "labels": [str(label // 2), str(label)]} for label in labels]


class LegacyClustering(Labelled, AbsTaskClusteringLegacy):
    """One set of texts per row; sets may overlap, and the last set has a single label."""

    metadata = task_metadata("TwentyNewsgroupsClustering", "Clustering", "v_measure")
    seed_of_data = 9
    splits: ClassVar[dict[str, int]] = {"test": 3}

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        labels = [writer.random.randrange(TOPICS) for _ in range(60)]
        pool = [(blended(writer, label), str(label)) for label in labels]
        sets = [writer.random.sample(pool, k=35) for _ in range(count)]
        rows = [{"sentences": [text for text, _ in one], "labels": [label for _, label in one]} for one in sets]
        rows[-1]["labels"] = ["one"] * 35
        return rows


class LocalPairs(Labelled, AbsTaskPairClassification):
    """Pairs of a text embedded as a query and a text embedded as a document."""

    metadata = task_metadata("SprintDuplicateQuestions", "PairClassification", "max_ap", eval_langs=LANGUAGES)
    seed_of_data = 10
    splits: ClassVar[dict[str, int]] = {"test": 60}
    input1_prompt_type = PromptType.query
    input2_prompt_type = PromptType.document

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        topics = [writer.random.randrange(TOPICS) for _ in range(count)]
        texts = [writer.text(topic) for topic in topics]
        labels = [int(writer.random.random() < 0.5) for _ in range(count)]
        return [
            {"sentence1": text, "sentence2": writer.near(text, 3) if label else writer.near(text, 5), "labels": label}
            for text, label in zip(texts, labels, strict=True)
        ]


class PairsInOneRow(LocalPairs):
    """A single row of lists, the format of mteb's older data sets."""

    metadata = task_metadata("TwitterURLCorpus", "PairClassification", "similarity_ap")
    seed_of_data = 12
    input1_prompt_type = None
    input2_prompt_type = None

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        rows = super().rows(writer, count)
        return [{column: [row[column] for row in rows] for column in rows[0]}]


class LocalBitext(Labelled, AbsTaskBitextMining):
    metadata = task_metadata("Tatoeba", "BitextMining", "f1", eval_langs={"deu-eng": ["eng-Latn"], "fra-eng": ["fra-Latn"]})
    seed_of_data = 13
    splits: ClassVar[dict[str, int]] = {"test": 120}

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        texts = [writer.text(writer.random.randrange(TOPICS), 6, 10) for _ in range(count)]
        return [{"sentence1": text, "sentence2": writer.near(text, 4)} for text in texts]


class LocalSummaries(Labelled, AbsTaskSummarization):
    metadata = task_metadata("SummEval", "Summarization", "cosine_spearman")
    seed_of_data = 15
    splits: ClassVar[dict[str, int]] = {"test": 12}
    min_score, max_score = 1, 5

    def rows(self, writer: Writer, count: int) -> list[dict[str, Any]]:
        rows = []
        for _ in range(count):
            text = writer.text(writer.random.randrange(TOPICS), 10, 14)
            changes = writer.random.sample(range(1, 9), k=5)
            rows.append(
                {
                    "text": text,
                    "human_summaries": [writer.near(text, 2) for _ in range(3)],
                    "machine_summaries": [writer.near(text, change) for change in changes],
                    "relevance": [5 - change / 2 + writer.random.random() for change in changes],
                }
            )
        return rows


def aggregate() -> AbsTaskAggregate:
    """Return a new aggregate of three tasks of three types."""

    class Mean(AbsTaskAggregate):
        metadata = AggregateTaskMetadata(
            name="MeanOfThree",
            type="Retrieval",
            description="Random sentences.",
            main_score="mean_score",
            eval_splits=["test"],
            tasks=[LocalSTS(), FewResults(), LocalClustering()],
        )

    return Mean()


def benchmark() -> Benchmark:
    """Return a new benchmark with tasks of many types."""
    kinds = [AsymmetricSTS, LocalReranking, BinaryClassification, LocalClustering, LocalBitext, LocalSummaries]
    return Benchmark(name="many types", tasks=[kind() for kind in kinds])
