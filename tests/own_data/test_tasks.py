"""Tasks from own data: scores compared with hand-written mteb tasks and independent computations."""

from __future__ import annotations

import copy
import pickle
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.multilabel_classification import AbsTaskMultilabelClassification
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.data_cleaning import remove_duplicates
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression

from st_matryoshka2d import Size, classification_task, evaluate, pair_task, retrieval_task, sts_task, truncate
from tests.support import families

pytestmark = [
    # mteb warns about prompts, scikit-learn about small data.
    pytest.mark.filterwarnings("ignore:SentenceTransformers that use prompts most often:UserWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

SIZES = [Size(2, 8), Size(4, 32)]


def sentences(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(generator.choices(families.WORDS, k=generator.randint(3, 9)))] = None
    return list(found)


def pairs(seed: int = 0) -> dict[str, list[Any]]:
    ones, others, generator = sentences(40, seed), sentences(40, seed + 100), random.Random(seed)
    return {"sentence1": ones, "sentence2": others, "score": [generator.uniform(-1, 7) for _ in ones]}


def collection() -> tuple[dict[str, Any], dict[str, str], dict[str, dict[str, int]]]:
    generator = random.Random(2)
    corpus: dict[str, Any] = {f"d{i}": text for i, text in enumerate(sentences(50, 3))}
    corpus |= {name: {"title": "the old house", "text": corpus[name]} for name in list(corpus)[::3]}
    queries = {f"q{i}": text for i, text in enumerate(sentences(12, 4))}
    qrels = {query: {name: generator.randint(0, 3) for name in generator.sample(list(corpus), 9)} for query in queries}
    return corpus, queries, qrels


def labelled(seed: int, count: int) -> dict[str, list[Any]]:
    """Generate texts in which each label prefers some words."""
    generator = random.Random(seed)
    labels = [index % 3 for index in range(count)]
    pools = [families.WORDS + 4 * families.WORDS[6 * label : 6 * label + 10] for label in range(3)]
    texts = [" ".join(generator.choices(pools[label], k=6)) for label in labels]
    return {"text": texts, "label": labels}


def scores_of_mteb(model: SentenceTransformer, task: Any) -> dict[str, float]:
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False).task_results[0]
    assert len(result.scores["test"]) == 1
    return {metric: score for metric, score in result.scores["test"][0].items() if isinstance(score, float)}


def main_score(model: SentenceTransformer, task: Any) -> float:
    return scores_of_mteb(model, task)["main_score"]


def by_hand(base: type[Any], kind: str, main_score: str, data: Any) -> Any:
    """Build a task as in mteb's documentation."""

    class ByHand(base):  # type: ignore[misc]
        metadata = TaskMetadata(
            name="ByHand",
            type=kind,  # type: ignore[arg-type]
            description="",
            dataset={"path": "none", "revision": "none"},
            main_score=main_score,
            eval_langs=["eng-Latn"],
        )

        def load_data(self, *args: Any, **kwargs: Any) -> None:
            self.dataset, self.data_loaded = data, True

    return ByHand()


def sts() -> tuple[Any, Any]:
    return sts_task(pairs()), by_hand(
        AbsTaskSTS, "STS", "cosine_spearman", DatasetDict({"test": Dataset.from_dict(pairs())})
    )


def labelled_pairs(seed: int = 0) -> dict[str, list[Any]]:
    rows = pairs(seed)
    return {"sentence1": rows["sentence1"], "sentence2": rows["sentence2"], "label": [int(one > 3) for one in rows["score"]]}


def pair_classification() -> tuple[Any, Any]:
    rows = labelled_pairs()
    # mteb's name
    data = DatasetDict({"test": Dataset.from_dict(rows).rename_column("label", "labels")})
    return pair_task(rows), by_hand(AbsTaskPairClassification, "PairClassification", "max_ap", data)


def retrieval() -> tuple[Any, Any]:
    corpus, queries, qrels = collection()
    rows = [document if isinstance(document, dict) else {"title": "", "text": document} for document in corpus.values()]
    split = {
        "corpus": Dataset.from_list([{"id": name, **row} for name, row in zip(corpus, rows, strict=True)]),
        "queries": Dataset.from_list([{"id": name, "text": text} for name, text in queries.items()]),
        "relevant_docs": qrels,
        "top_ranked": None,
    }
    hand = by_hand(AbsTaskRetrieval, "Retrieval", "ndcg_at_10", {"default": {"test": split}})
    return retrieval_task(corpus, queries, qrels), hand


def classification() -> tuple[Any, Any]:
    train, test = labelled(5, 60), labelled(6, 45)
    data = DatasetDict({"train": Dataset.from_dict(train), "test": Dataset.from_dict(test)})
    hand = by_hand(AbsTaskClassification, "Classification", "accuracy", data)
    hand.samples_per_label, hand.n_experiments = 5, 3
    return classification_task(train, test, samples_per_label=5, n_experiments=3), hand


def several_labels() -> tuple[Any, Any]:
    train, test = (
        {"text": rows["text"], "label": [[label, 3] if row % 2 else [label] for row, label in enumerate(rows["label"])]}
        for rows in (labelled(7, 60), labelled(8, 45))
    )
    data = DatasetDict({"train": Dataset.from_dict(train), "test": Dataset.from_dict(test)})
    hand = by_hand(AbsTaskMultilabelClassification, "MultilabelClassification", "accuracy", data)
    hand.n_experiments = 3
    return classification_task(train, test, n_experiments=3), hand


ALL = pytest.mark.parametrize("make", [sts, pair_classification, retrieval, classification, several_labels])
Make = Callable[[], tuple[Any, Any]]


@ALL
def test_scores_are_those_of_a_task_written_by_hand(tiny: SentenceTransformer, make: Make) -> None:
    own, _ = make()
    grid = evaluate(tiny, own, sizes=SIZES, show_progress_bar=False)
    for size in SIZES:
        _, hand = make()
        cut = truncate(tiny, num_layers=size.num_layers, dim=size.dim)
        expected = scores_of_mteb(cut, hand)
        assert len(expected) >= 5
        # the same object that the grid and the last size used
        assert scores_of_mteb(cut, own) == expected
        assert grid.score(size) == pytest.approx(expected["main_score"], abs=1e-6)
    assert grid.score(SIZES[0]) != grid.score(SIZES[1])


def test_spearman_by_scipy(tiny: SentenceTransformer) -> None:
    rows = pairs()
    one, two = (tiny.encode(rows[column]) for column in ("sentence1", "sentence2"))
    cosines = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    named = {"a": rows["sentence1"], "b": rows["sentence2"], "gold": np.array(rows["score"]), "other": [None] * 40}
    task = sts_task(named, sentence1="a", sentence2="b", score="gold", name="Named")
    assert main_score(tiny, task) == pytest.approx(spearmanr(cosines, rows["score"])[0], abs=1e-6)


def ndcg_at_10(queries: Any, documents: Any, names: list[str], judged: list[dict[str, int]]) -> float:
    """Compute the mean of DCG / ideal DCG with the relevance as gain, by a loop."""
    found = []
    for query, relevance in zip(queries, judged, strict=True):
        cosines = documents @ query / np.linalg.norm(documents, axis=1) / np.linalg.norm(query)
        ranked = [relevance.get(names[index], 0) for index in np.argsort(-cosines)[:10]]
        best = sorted(relevance.values(), reverse=True)[:10]
        dcg, ideal = (sum(gain / np.log2(rank + 2) for rank, gain in enumerate(gains)) for gains in (ranked, best))
        found.append(dcg / ideal)
    return float(np.mean(found))


def test_ndcg_by_a_loop_and_prompts_by_type_and_side(tiny: SentenceTransformer) -> None:
    corpus, queries, qrels = collection()
    texts = [f"{d['title']} {d['text']}" if isinstance(d, dict) else d for d in corpus.values()]
    task = retrieval_task(corpus, queries, qrels)
    plain = ndcg_at_10(tiny.encode(list(queries.values())), tiny.encode(texts), list(corpus), list(qrels.values()))
    assert main_score(tiny, task) == pytest.approx(plain, abs=1e-5)  # mteb rounds to five digits
    encoded = tiny.encode(list(queries.values()), prompt="the red "), tiny.encode(texts, prompt="under a ")
    tiny.prompts = {"Retrieval-query": "the red ", "document": "under a ", "MyRetrieval": "the dog "}
    with pytest.warns(UserWarning, match="Task name MyRetrieval is not valid"):
        prompted = main_score(tiny, task)
    assert prompted == pytest.approx(ndcg_at_10(*encoded, list(corpus), list(qrels.values())), abs=1e-5)
    assert prompted != pytest.approx(plain, abs=1e-3)


def test_accuracy_by_scikit_learn(tiny: SentenceTransformer) -> None:
    train, test = labelled(5, 60), labelled(6, 45)
    words = ["chess", "tea", "rain"]  # other label numbers; all texts are used for training
    named = [{"words": rows["text"], "topic": [words[label] for label in rows["label"]]} for rows in (train, test)]
    task = classification_task(*named, text="words", label="topic", samples_per_label=20, n_experiments=1)
    classifier = LogisticRegression(max_iter=100).fit(tiny.encode(train["text"]), train["label"])
    expected = classifier.score(tiny.encode(test["text"]), test["label"])
    assert 0.4 < expected < 1
    assert main_score(tiny, task) == pytest.approx(expected, abs=1e-9)
    assert task.dataset["train"].features["label"] == ClassLabel(names=sorted(words))


def test_a_test_with_two_of_three_labels_can_be_scored(tiny: SentenceTransformer) -> None:
    train, test = labelled(5, 60), labelled(6, 45)
    rows = [row for row, label in enumerate(test["label"]) if label != 1]
    two = {column: [cells[row] for row in rows] for column, cells in test.items()}
    assert 0 < main_score(tiny, classification_task(train, two)) <= 1


@ALL
def test_task_can_be_pickled_and_unloaded(tiny: SentenceTransformer, make: Make) -> None:
    own, _ = make()
    expected = scores_of_mteb(tiny, own)
    sent = pickle.loads(pickle.dumps(copy.deepcopy(own)))
    assert sent.metadata == own.metadata
    sent.unload_data()
    assert sent.dataset is None
    assert not sent.data_loaded
    assert sent.metadata == own.metadata
    again = pickle.loads(pickle.dumps(sent))
    assert scores_of_mteb(tiny, again) == expected  # mteb loads the data, and unloads it again
    again.load_data()
    assert again.data_loaded
    assert scores_of_mteb(tiny, again) == expected


def test_reloading_restores_filtered_data_and_name() -> None:
    train, test = labelled(5, 60), labelled(6, 45)
    task = classification_task({column: [*cells, cells[0]] for column, cells in train.items()}, test)
    task = remove_duplicates(task)
    assert len(task.dataset["train"]) == 60
    assert task.metadata.name != "MyClassification"
    task.unload_data()
    task.load_data()
    assert len(task.dataset["train"]) == 61
    assert task.metadata.name == "MyClassification"


def test_making_a_task_leaves_the_random_states_alone() -> None:
    def draws() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))  # noqa: NPY002

    def seed() -> None:
        random.seed(7), np.random.seed(7), torch.manual_seed(7)  # noqa: NPY002

    seed()
    expected = draws()
    seed()
    sts_task(pairs())
    assert draws() == expected


def test_same_rows_in_any_container_have_same_revision(tmp_path: Path) -> None:
    corpus, queries, qrels = collection()
    documents = [{"id": name, **(d if isinstance(d, dict) else {"text": d})} for name, d in corpus.items()]
    judgments = [(query, name, grade) for query, found in qrels.items() for name, grade in found.items()]
    frame = pd.DataFrame(documents)
    assert frame["title"].isna().any()
    Dataset.from_pandas(frame.rename(columns={"id": "_id"})).save_to_disk(tmp_path / "corpus")
    tables: list[tuple[Any, Any, Any]] = [
        (corpus, queries, {query: dict(reversed(found.items())) for query, found in qrels.items()}),
        (frame, pd.Series(queries, name="text").rename_axis("id").reset_index(), pd.DataFrame(judgments, columns=QRELS)),
        (
            Dataset.load_from_disk(str(tmp_path / "corpus")),
            queries,
            Dataset.from_pandas(pd.DataFrame(judgments, columns=QRELS)),
        ),
    ]
    assert len({retrieval_task(*table).metadata.revision for table in tables}) == 1
    for task, table in [
        (sts_task, pairs()),
        (pair_task, labelled_pairs()),
        (lambda t: classification_task(t, labelled(9, 6)), labelled(5, 60)),
    ]:
        held: list[Any] = [table, pd.DataFrame(table), Dataset.from_dict(table).with_format("torch")]
        assert len({task(rows).metadata.revision for rows in held}) == 1  # type: ignore[operator]


QRELS = ["query_id", "corpus_id", "score"]


def test_revision_depends_on_data_and_settings() -> None:
    corpus, queries, qrels = collection()
    train, test = labelled(5, 60), labelled(6, 45)
    tasks = [
        sts_task(pairs()),
        sts_task({**pairs(), "score": [*pairs()["score"][:-1], 9]}),
        sts_task({**pairs(), "sentence2": [*pairs()["sentence2"][:-1], "another"]}),
        sts_task(pairs(), name="Other"),
        pair_task(labelled_pairs()),
        pair_task(labelled_pairs(1)),
        retrieval_task(corpus, queries, qrels),
        retrieval_task({**corpus, "d1": "another"}, queries, qrels),
        retrieval_task(corpus, {**queries, "q1": "another"}, qrels),
        retrieval_task(corpus, queries, {**qrels, "q1": ["d2"]}),
        classification_task(train, test),
        classification_task(train, test, n_experiments=2),
        classification_task(train, test, samples_per_label=2),
        classification_task(train, labelled(9, 45)),
    ]
    assert len({task.metadata.revision for task in tasks}) == len(tasks)


def test_two_data_sets_with_one_name_share_no_cached_score(tiny: SentenceTransformer, tmp_path: Path) -> None:
    first, second = sts_task(pairs(0)), sts_task(pairs(1))
    expected = [main_score(tiny, task) for task in (first, second, first)]
    kept = {"sizes": [Size(4, 32)], "cache": tmp_path, "show_progress_bar": False}
    found = [evaluate(tiny, task, **kept).score("4L-32d") for task in (first, second, first)]  # type: ignore[arg-type]
    assert found == pytest.approx(expected, abs=1e-6)
    assert found[0] != found[1]


def test_corpus_stays_on_disk(tmp_path: Path) -> None:
    count, words = 6000, "the old bird " * 400

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield {"_id": number, "text": f"{words}{number}", "title": "a" if number % 2 else None}

    Dataset.from_generator(rows, cache_dir=str(tmp_path)).save_to_disk(tmp_path / "corpus")
    corpus = Dataset.load_from_disk(str(tmp_path / "corpus"))
    assert corpus.dataset_size > 30e6
    allocated = pa.total_allocated_bytes()
    tracemalloc.start()
    task = retrieval_task(corpus, {1: "the bird"}, {1: [7]})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    assert pa.total_allocated_bytes() - allocated < 2e6
    for sent in (task, pickle.loads(pickle.dumps(task)), copy.deepcopy(task)):
        mapped = sent.dataset["default"]["test"]["corpus"]
        assert mapped.cache_files
        assert len(mapped) == count
        assert mapped[2] == {"id": "2", "text": f"{words}2", "title": ""}


def test_a_shuffled_corpus_keeps_its_rows(tiny: SentenceTransformer) -> None:
    corpus, queries, qrels = collection()
    rows = Dataset.from_list([{"id": name, "title": "", "text": str(text)} for name, text in corpus.items()])
    some = rows.shuffle(seed=1).select(range(45))
    judged = {query: {name: 2 for name in found if name in set(some["id"])} for query, found in qrels.items()}
    expected = main_score(tiny, retrieval_task({row["id"]: row["text"] for row in some.to_list()}, queries, judged))
    assert main_score(tiny, retrieval_task(some, queries, judged)) == pytest.approx(expected, abs=1e-6)


def test_real_pairs_from_a_csv(minilm: SentenceTransformer, shared: Path, tmp_path: Path) -> None:
    pd.read_parquet(shared / "data/sts/stsb/test.parquet").iloc[::10].to_csv(tmp_path / "pairs.csv", index=False)
    frame = pd.read_csv(tmp_path / "pairs.csv")
    shallow = truncate(minilm, num_layers=1, dim=384)
    one, two = (shallow.encode(frame[column].tolist()) for column in ("sentence1", "sentence2"))
    expected = spearmanr((one * two).sum(1), frame["score"])[0]  # the model normalises
    assert expected > 0.5
    # rounding may swap neighbours
    assert main_score(shallow, sts_task(frame)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_a_real_collection(minilm: SentenceTransformer, shared: Path) -> None:
    corpus, queries, qrels = (
        pd.read_parquet(shared / f"data/retrieval/cranfield/{name}.parquet") for name in ("corpus", "queries", "qrels")
    )
    qrels = qrels[qrels["query_id"].astype(int) <= 12]
    corpus = corpus[corpus["id"].isin([*qrels["corpus_id"], "471", "995"])]
    with pytest.raises(ValueError, match=r"qrels, .*, score: .* -1"):
        retrieval_task(corpus, queries, qrels.drop(columns="score").rename(columns={"raw_grade": "score"}))
    with pytest.warns(UserWarning, match="without") as remarks:
        task = retrieval_task(corpus, queries, qrels)
    assert [str(remark.message) for remark in remarks] == [
        "Documents in corpus without text and title: 2. They are kept.",
        "Queries without a relevant document: 213 of 225. They are dropped.",
    ]
    shallow = truncate(minilm, num_layers=1, dim=384)
    judged = [dict(zip(rows["corpus_id"], rows["score"], strict=True)) for _, rows in qrels.groupby("query_id", sort=False)]
    asked = queries.set_index("id").loc[qrels["query_id"].unique(), "text"].tolist()
    documents = shallow.encode((corpus["title"] + " " + corpus["text"]).str.strip().tolist())
    expected = ndcg_at_10(shallow.encode(asked), documents, corpus["id"].tolist(), judged)
    assert expected > 0.2
    assert main_score(shallow, task) == pytest.approx(expected, abs=1e-5)
