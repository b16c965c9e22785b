"""Small retrieval tasks with titles, duplicates, and graded and missing judgments."""

from __future__ import annotations

from typing import Any, ClassVar

from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

from tests.support.task_types import Writer, task_metadata

TOPICS = 5
DOCUMENTS = 90
FEW = 16
DUPLICATES = {"d3": "d40", "d17": "d71", "d18": "d19"}
EQUAL_TO_A_QUERY = ("d8", "d50", "d66")


class Collection:
    """Documents and queries about topics; each query is derived from one document.

    Judgments are 2 for a query's source document, 1 for some documents of its topic and 0 for some
    others. Copies have the judgment of their original, so that no score depends on how ties between
    them are broken.
    """

    def __init__(self, seed: int, queries: int = 30) -> None:
        self.writer = Writer(seed, TOPICS)
        self.rng = self.writer.random
        self.topic_of = {f"d{i}": self.rng.randrange(TOPICS) for i in range(DOCUMENTS)}
        self.documents = {
            name: {"id": name, "title": self.title(name), "text": self.writer.text(topic, 6, 14)}
            for name, topic in self.topic_of.items()
        }
        for copy, original in DUPLICATES.items():
            self.documents[copy] = {**self.documents[original], "id": copy}
            self.topic_of[copy] = self.topic_of[original]
        self.queries: dict[str, str] = {}
        self.judgments: dict[str, dict[str, int]] = {}
        originals = [name for name in self.documents if name not in (*DUPLICATES, *DUPLICATES.values(), *EQUAL_TO_A_QUERY)]
        for i, name in enumerate(self.rng.sample(originals, k=queries)):
            self.add(f"q{i}", name, self.writer.near(self.documents[name]["text"], changes=4))
        # A query with the id of another document, and queries that equal a document.
        self.add("d30", "d31", self.writer.near(self.documents["d31"]["text"], changes=3))
        for name in EQUAL_TO_A_QUERY:
            self.documents[name]["title"] = ""
            self.queries[name], self.judgments[name] = self.documents[name]["text"], {name: 1}
        # No positive judgment, an empty judgment, and no entry in the table.
        self.queries |= {name: self.writer.text(0) for name in ("only-zeros", "unjudged", "unknown")}
        self.judgments |= {"only-zeros": {"d1": 0, "d2": 0}, "unjudged": {}}

    def title(self, name: str) -> str:
        return self.writer.text(self.topic_of[name], 1, 3) if self.rng.random() < 0.5 else ""

    def add(self, query: str, document: str, text: str) -> None:
        topic = self.topic_of[document]
        same = [name for name, other in self.topic_of.items() if other == topic and name != document]
        others = [name for name, other in self.topic_of.items() if other != topic]
        grades = {name: 1 for name in self.rng.sample(same, k=min(5, len(same)))}
        grades |= {name: 0 for name in self.rng.sample(others, k=6)}
        grades[document] = 2
        for copy, original in DUPLICATES.items():
            if {copy, original} & set(grades):
                grades[copy] = grades[original] = max(grades.get(copy, 0), grades.get(original, 0))
        self.queries[query], self.judgments[query] = text, grades

    def split(self, **extra: Any) -> RetrievalSplitData:
        data: dict[str, Any] = {
            "corpus": Dataset.from_list(list(self.documents.values())),
            "queries": Dataset.from_list([{"id": name, "text": text} for name, text in self.queries.items()]),
            "relevant_docs": {name: dict(grades) for name, grades in self.judgments.items()},
            "top_ranked": None,
            **extra,
        }
        return RetrievalSplitData(**data)


class LocalRetrieval(AbsTaskRetrieval):
    """One collection, named after a task of mteb so that prompts for it are used."""

    metadata = task_metadata("NFCorpus", "Retrieval", "ndcg_at_10")
    first_seed: ClassVar[int] = 0
    k_values: tuple[int, ...] = (1, 3, 5, 10, 1000)

    def load_data(self, *args: Any, **kwargs: Any) -> None:
        places = [(subset, split) for subset in self.hf_subsets for split in self.eval_splits]
        self.dataset = {subset: {} for subset in self.hf_subsets}
        for seed, (subset, split) in enumerate(places, start=self.first_seed):
            self.dataset[subset][split] = self.make(Collection(seed))
        self.data_loaded = True

    def make(self, collection: Collection) -> RetrievalSplitData:
        return collection.split()


class Apart(LocalRetrieval):
    """Few documents, none of them a copy: for two ways to a score, whose rounding must not order documents otherwise."""

    first_seed = 3  # with which scores of documents of different grades are 6e-5 apart, by the models of these tests

    def make(self, collection: Collection) -> RetrievalSplitData:
        copies = {*DUPLICATES, *DUPLICATES.values()}
        few = [name for name in collection.documents if name not in copies][:FEW]
        collection.documents = {name: collection.documents[name] for name in few}
        judged = {
            query: {name: grade for name, grade in grades.items() if name in few}
            for query, grades in collection.judgments.items()
        }
        collection.judgments = {query: grades for query, grades in judged.items() if any(grades.values())}
        collection.queries = {query: collection.queries[query] for query in collection.judgments}
        return collection.split()


class FewResults(LocalRetrieval):
    """Keeps fewer results than there are documents, and excludes the query's own id."""

    metadata = task_metadata("SciFact", "Retrieval", "ndcg_at_3", eval_splits=["dev", "test"])
    first_seed = 1
    k_values = (1, 3, 7)
    ignore_identical_ids = True


class SkipFirst(LocalRetrieval):
    metadata = task_metadata("ArguAna", "Retrieval", "mrr_at_10")
    first_seed = 3
    k_values = (1, 5, 10)
    skip_first_result = True


class ManySubsets(LocalRetrieval):
    """Several collections in one task, as in NanoBEIR."""

    metadata = task_metadata(
        "NanoSciFactRetrieval",
        "Retrieval",
        "ndcg_at_10",
        eval_langs={"one": ["eng-Latn"], "two": ["eng-Latn"], "three": ["fra-Latn"]},
    )
    first_seed = 4


class LocalReranking(LocalRetrieval):
    """Each query has its own candidates, some of which are copies; one query has a single candidate."""

    metadata = task_metadata("AskUbuntuDupQuestions", "Reranking", "map_at_1000")
    first_seed = 7

    def make(self, collection: Collection) -> RetrievalSplitData:
        names = list(collection.documents)
        candidates = {}
        for query, grades in collection.judgments.items():
            more = collection.rng.sample(names, k=8)
            candidates[query] = list(dict.fromkeys([*grades, *more]))
            collection.rng.shuffle(candidates[query])
        candidates["q3"] = candidates["q3"][:1]
        candidates["q4"] = ["d3", "d40", "d17", "d71"]
        return collection.split(top_ranked=candidates)


class LocalInstructions(LocalRetrieval):
    """Queries have an instruction, which mteb appends to their text; two queries differ only in the instruction."""

    metadata = task_metadata("Core17InstructionRetrieval", "InstructionRetrieval", "ndcg_at_5")
    first_seed = 8

    def make(self, collection: Collection) -> RetrievalSplitData:
        rows = [
            {"id": name, "text": text, "instruction": collection.writer.text(i % TOPICS, 3, 6)}
            for i, (name, text) in enumerate(collection.queries.items())
        ]
        rows[1]["text"] = rows[0]["text"]
        return collection.split(queries=Dataset.from_list(rows))


class LocalInstructionReranking(LocalReranking):
    """Adds task-specific scores: a number, which is a metric, and a table of numbers, which is not."""

    metadata = task_metadata("News21InstructionRetrieval", "InstructionReranking", "worst_query")
    first_seed = 9

    def make(self, collection: Collection) -> RetrievalSplitData:
        data = super().make(collection)
        instructions = [collection.writer.text(i % TOPICS, 3, 6) for i in range(len(data["queries"]))]
        data["queries"] = data["queries"].add_column("instruction", instructions)
        return data

    def task_specific_scores(self, scores: Any, qrels: Any, results: Any, **kwargs: Any) -> dict[str, Any]:
        by_query = {query: values["ndcg_cut_10"] for query, values in scores.items()}
        return {"worst_query": sorted(by_query.values())[5], "og": by_query}
