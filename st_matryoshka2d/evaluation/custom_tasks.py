"""Tasks of the user's own data: scored pairs, documents and queries, labelled texts."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.multilabel_classification import AbsTaskMultilabelClassification
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS

from st_matryoshka2d.evaluation import custom_data
from st_matryoshka2d.evaluation.custom_data import Judgments, Label, Labelled, Texts
from st_matryoshka2d.evaluation.custom_tables import Table, check_columns, first_of, number, rows, text
from st_matryoshka2d.evaluation.tasks import OwnData, check_name
from st_matryoshka2d.sizes import positive_int


class OwnSTS(OwnData, AbsTaskSTS):
    """Pairs of the user's own; made by `sts_task`."""

    kind, category, main_score = "STS", "t2t", "cosine_spearman"


def sts_task(
    pairs: Table, *, sentence1: str = "sentence1", sentence2: str = "sentence2", score: str = "score", name: str = "MySTS"
) -> AbsTaskSTS:
    """Make a task of your own pairs of texts: how well do similarities order them as your scores do?

    The main score is Spearman's correlation of cosine similarities and your scores. The task works in `evaluate` and in mteb
    itself, needs no network, and has a digest of its data as revision. mteb (2.26) looks for a prompt of the model by the
    type, here `"STS"`, and drops one under the name of your task. Its cache goes by the name alone: with other data, give
    `mteb.evaluate` another name or `cache=None`.

    Args:
        pairs: A `datasets.Dataset`, a `pandas.DataFrame` or a dict of lists.
        sentence1: Column of the first texts.
        sentence2: Column of the second texts.
        score: Column of the scores, on any scale; more is more similar.
        name: What the task is called in the results.

    Raises:
        TypeError: `pairs` is not a table.
        ValueError: A column or text is missing or empty; a score is no finite number; all scores are equal; the name is one
            of mteb's. Rows are counted from 0.

    Warns:
        UserWarning: A pair is there several times with different scores.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> texts = {"sentence1": ["a cat sat", "it rains"], "sentence2": ["a kitten sat", "he plays chess"]}
        >>> task = sts_task({**texts, "score": [4.5, 0]})
        >>> evaluate(model, task, sizes=["3L-64d"], show_progress_bar=False).tasks
        ['MySTS']
    """
    check_name(name)
    check_columns(pairs, "pairs", {"sentence1": sentence1, "sentence2": sentence2, "score": score})
    ones, others, scores = [], [], []
    for row, (one, other, value) in enumerate(rows(pairs, [sentence1, sentence2, score])):
        ones.append(text(one, f"pairs, row {row}, {sentence1}"))
        others.append(text(other, f"pairs, row {row}, {sentence2}"))
        scores.append(number(value, f"pairs, row {row}, {score}"))
    data = Dataset.from_dict({"sentence1": ones, "sentence2": others, "score": scores})
    if len(scores) == 1:
        raise ValueError("pairs has one row; a correlation needs at least two, with different scores.")
    if len(set(scores)) == 1:
        raise ValueError(f"All {len(scores)} scores in pairs are {scores[0]:g}; a correlation needs at least two values.")
    values = data.to_pandas().groupby(["sentence1", "sentence2"])["score"].nunique()
    if conflicts := int((values > 1).sum()):
        warnings.warn(f"Pairs that are there several times with different scores: {conflicts}; all are kept.", stacklevel=2)
    return OwnSTS(name, DatasetDict({"test": data}), description=f"{len(data)} pairs of texts.")


class OwnRetrieval(OwnData, AbsTaskRetrieval):
    """A collection of the user's own; made by `retrieval_task`."""

    kind, category, main_score = "Retrieval", "t2t", "ndcg_at_10"


def retrieval_task(corpus: Texts, queries: Texts, qrels: Judgments, *, name: str = "MyRetrieval") -> AbsTaskRetrieval:
    """Make a task of your own documents and queries: how high do relevant documents rank?

    The main score is nDCG@10, as in BEIR. Ids are texts; integers become texts. A corpus that is a `Dataset` on disk stays
    there. On mteb's prompts and cache see `sts_task`; here a prompt's name is `"Retrieval-query"`, `"Retrieval"` or
    `"query"`, and the same for `document`.

    Args:
        corpus: Id to text, or id to `{"title": ..., "text": ...}`, or a `Dataset` or `DataFrame` with the columns id (or
            _id), text and, if there are titles, title. mteb puts the title before the text.
        queries: Id to text, or a table with the columns id (or _id) and text.
        qrels: Query id to a list of the relevant documents' ids, or query id to document id to relevance (0, 1, 2, ...), or
            a table with the columns query_id, corpus_id (or both with a hyphen) and score. What is not named is not
            relevant.
        name: What the task is called in the results.

    Raises:
        TypeError: An argument is of no type that is named above.
        ValueError: A column, id or text is missing; an id or a judgment is there twice; a relevance is negative or no whole
            number; a judgment names what is not there; no query has a relevant document; the name is one of mteb's.

    Warns:
        UserWarning: Queries without a relevant document are left out; documents have neither text nor title.

    Example:
        >>> corpus = {"d1": "a kitten sleeps", "d2": "rain is falling", "d3": "he plays chess"}
        >>> queries = {"q1": "small cat", "q2": "bad weather"}
        >>> retrieval_task(corpus, queries, {"q1": ["d1"], "q2": ["d2"]}).metadata.description
        '2 queries and 3 documents.'
    """
    check_name(name)
    documents, questions = custom_data.read_corpus(corpus), custom_data.read_queries(queries)
    judged = custom_data.read_judgments(qrels)
    _check_known(judged, questions, "query", "queries")
    _check_known({document for found in judged.values() for document in found}, documents, "document", "corpus")
    columns = [column for column in ("text", "title") if column in documents.column_names]
    if empty := sum(not any(map(str.strip, document)) for document in rows(documents, columns)):
        warnings.warn(f"Documents in corpus without text and title: {empty}; they are kept.", stacklevel=2)
    judged = {query: found for query, found in judged.items() if any(found.values())}
    kept = [row for row, (query,) in enumerate(rows(questions, ["id"])) if query in judged]
    if not kept:
        raise ValueError("No query has a relevant document in qrels: every relevance is 0.")
    if left_out := len(questions) - len(kept):
        remark = f"Queries without a relevant document: {left_out} of {len(questions)}; they are left out."
        warnings.warn(remark, stacklevel=2)
        questions = questions.select(kept)
    split = {"corpus": documents, "queries": questions, "relevant_docs": judged, "top_ranked": None}
    description = f"{len(questions)} queries and {len(documents)} documents."
    return OwnRetrieval(name, {"default": {"test": split}}, description=description)


def _check_known(judged: Collection[str], there: Dataset, kind: str, what: str) -> None:
    if unknown := sorted(set(judged).difference(name for (name,) in rows(there, ["id"]))):
        raise ValueError(
            f"qrels names {kind} ids that are not in {what}: {first_of(unknown)} ({len(unknown)} in all). "
            "Drop those judgments, or add what they name."
        )


# mteb's classifier of several labels asks this many neighbours, and fails with fewer texts.
_NEIGHBOURS = 5


class OwnClassification(OwnData, AbsTaskClassification):
    """Texts of the user's own with a label each; made by `classification_task`."""

    kind, category, main_score = "Classification", "t2c", "accuracy"


class OwnMultilabelClassification(OwnData, AbsTaskMultilabelClassification):
    """Texts of the user's own with any number of labels each; made by `classification_task`."""

    kind, category, main_score = "MultilabelClassification", "t2c", "accuracy"

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, Mapping[str, Any]]:
        """Score a model on the same draws each time: mteb's own class goes on drawing where the last call stopped."""
        self.np_rng = np.random.default_rng(self.seed)
        return super().evaluate(*args, **kwargs)


def classification_task(
    train: Table,
    test: Table,
    *,
    text: str = "text",
    label: str = "label",
    samples_per_label: int = 8,
    n_experiments: int = 10,
    name: str = "MyClassification",
) -> AbsTaskClassification:
    """Make a task of your own labelled texts: can a simple classifier tell the labels apart by the embeddings?

    As all of mteb's, it learns from a few texts of each label, drawn from `train` several times, and is scored on all of
    `test`; the main score is the mean accuracy. With one label for each text the classifier is a logistic regression. With
    lists of labels it is mteb's multilabel task with the five nearest neighbours, where accuracy asks for all labels of a
    text and a `test` of more than 3000 texts is cut to as many. On mteb's prompts and cache see `sts_task`; here the type
    is `"Classification"` or `"MultilabelClassification"`.

    Args:
        train: A `datasets.Dataset`, a `pandas.DataFrame` or a dict of lists.
        test: The same, with other texts.
        text: Column of the texts.
        label: Column of the labels, texts or integers; one for each text, or lists of them.
        samples_per_label: Texts of each label that a classifier learns from; all there are where there are fewer.
        n_experiments: Classifiers, each with a draw of its own.
        name: What the task is called in the results.

    Raises:
        TypeError: A table is none, or a number is not an integer.
        ValueError: A column, text or label is missing; `train` has fewer than two labels; a label is in `test` alone; texts
            are too few for mteb's multilabel task; the name is one of mteb's. Rows are counted from 0.

    Warns:
        UserWarning: Texts are in `train` and in `test`; a label has fewer than `samples_per_label` texts to learn from.

    Example:
        >>> train = {"text": ["fine", "good", "bad", "poor"], "label": ["praise", "praise", "blame", "blame"]}
        >>> test = {"text": ["very good", "really bad"], "label": ["praise", "blame"]}
        >>> classification_task(train, test, samples_per_label=2).metadata.name
        'MyClassification'
    """
    check_name(name)
    samples_per_label = positive_int(samples_per_label, "samples_per_label")
    n_experiments = positive_int(n_experiments, "n_experiments")
    learnt = custom_data.read_labelled(train, "train", text, label)
    asked = custom_data.read_labelled(test, "test", text, label)
    labels = custom_data.check_labels(learnt, asked)
    if learnt.several:
        _check_neighbours(learnt, asked, samples_per_label)
    for remark in _remarks(learnt, asked, samples_per_label):
        warnings.warn(remark, stacklevel=2)
    own = OwnMultilabelClassification if learnt.several else OwnClassification
    data = DatasetDict({"train": _dataset(learnt, labels), "test": _dataset(asked, labels)})
    description = f"{len(learnt.texts)} texts to learn from, {len(asked.texts)} to classify, {len(labels)} labels."
    return own(name, data, description=description, samples_per_label=samples_per_label, n_experiments=n_experiments)


def _remarks(train: Labelled, test: Labelled, samples_per_label: int) -> Iterator[str]:
    seen = set(train.texts)
    if leaked := sum(text in seen for text in test.texts):
        yield f"Texts of test that are also in train: {leaked} of {len(test.texts)}; they flatter the scores."
    counts = train.counts()
    if rare := [label for label, count in counts.items() if count < samples_per_label]:
        rarest = min(rare, key=counts.__getitem__)
        yield (
            f"Labels with fewer than samples_per_label={samples_per_label} texts in train: {len(rare)} (the rarest, "
            f"{rarest!r}, has {counts[rarest]}); all of their texts are learnt from."
        )


def _check_neighbours(train: Labelled, test: Labelled, samples_per_label: int) -> None:
    labelled = sum(bool(labels) for labels in train.labels)
    if min(labelled, samples_per_label) < _NEIGHBOURS:
        raise ValueError(
            f"With lists of labels mteb asks the {_NEIGHBOURS} nearest neighbours: train needs {_NEIGHBOURS} texts with a "
            f"label, got {labelled}, and samples_per_label must be {_NEIGHBOURS} or more, got {samples_per_label}."
        )
    if len(test.counts()) < 2:
        raise ValueError(f"With lists of labels, test needs at least two different labels, got {list(test.counts())}.")


def _dataset(split: Labelled, labels: list[Label]) -> Dataset:
    """Labels as numbers that know their names."""
    number = {label: index for index, label in enumerate(labels)}
    numbered = [[number[label] for label in row] for row in split.labels]
    kind = ClassLabel(names=[str(label) for label in labels])
    features = Features({"text": Value("string"), "label": List(kind) if split.several else kind})
    cells = {"text": split.texts, "label": numbered if split.several else [row[0] for row in numbered]}
    return Dataset.from_dict(cells, features=features)
