"""Make tasks from the user's own documents and queries, or labelled texts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.multilabel_classification import AbsTaskMultilabelClassification
from mteb.abstasks.retrieval import AbsTaskRetrieval

from st_matryoshka2d._hosts.mteb import QuietClassification
from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.evaluation import custom_labels
from st_matryoshka2d.evaluation.custom_data import Table, first_of, rows
from st_matryoshka2d.evaluation.custom_search import Judgments, Texts, read_corpus, read_judgments, read_queries
from st_matryoshka2d.evaluation.tasks import OwnData, check_name
from st_matryoshka2d.sizes import positive_int


class OwnRetrieval(OwnData, AbsTaskRetrieval):
    """The task that `retrieval_task` makes."""

    kind, category, main_score = "Retrieval", "t2t", "ndcg_at_10"


def retrieval_task(corpus: Texts, queries: Texts, qrels: Judgments, *, name: str = "MyRetrieval") -> AbsTaskRetrieval:
    """Make a retrieval task from your own documents, queries and relevance judgments.

    The main score is nDCG@10, as in BEIR. Ids are strings; integers are converted. A `Dataset` on disk stays there.
    `sts_task` explains mteb's prompts and cache; here the prompt names are `"Retrieval-query"`, `"Retrieval"` or `"query"`,
    and likewise with `document`.

    Args:
        corpus: A dict of ids to texts or to `{"title": ..., "text": ...}`, or a `Dataset` or `DataFrame` with the columns id
            (or _id), text and optionally title. mteb puts the title before the text.
        queries: A dict of ids to texts, or a table with the columns id (or _id) and text.
        qrels: A dict of query ids to lists of relevant document ids, or to dicts of document ids to relevance (0, 1, 2,
            ...), or a table with the columns query_id, corpus_id (or with a hyphen) and score. Others are not relevant.
        name: As for `sts_task`.

    Raises:
        TypeError: An argument has another type.
        ValueError: A column, id or text is missing; an id or judgment is repeated; a relevance is not 0, 1, 2, ...; a
            judgment has an unknown id; no query has a relevant document.

    Warns:
        DataWarning: Queries without a relevant document are dropped; documents have neither text nor title.

    Example:
        >>> corpus = {"d1": "a kitten sleeps", "d2": "rain is falling", "d3": "he plays chess"}
        >>> queries = {"q1": "small cat", "q2": "bad weather"}
        >>> retrieval_task(corpus, queries, {"q1": ["d1"], "q2": ["d2"]}).metadata.description
        '2 queries and 3 documents.'
    """
    check_name(name)
    documents, questions = read_corpus(corpus), read_queries(queries)
    judged = read_judgments(qrels)
    _check_known(judged, questions, "query", "queries")
    _check_known({document for found in judged.values() for document in found}, documents, "document", "corpus")
    columns = [column for column in ("text", "title") if column in documents.column_names]
    if empty := sum(not any(map(str.strip, document)) for document in rows(documents, columns)):
        warn(f"Documents in corpus without text and title: {empty}. They are kept.", DataWarning)
    judged = {query: found for query, found in judged.items() if any(found.values())}
    useful = [row for row, (query,) in enumerate(rows(questions, ["id"])) if query in judged]
    if not useful:
        raise UsageError("No query has a relevant document in qrels: every relevance is 0.")
    if (dropped := len(questions) - len(useful)) > 0:
        told = f"Queries without a relevant document: {dropped} of {len(questions)}. They are dropped."
        warn(told, DataWarning)
        questions = questions.select(useful)
    split = {"corpus": documents, "queries": questions, "relevant_docs": judged, "top_ranked": None}
    description = f"{len(questions)} queries and {len(documents)} documents."
    return OwnRetrieval(name, {"default": {"test": split}}, description=description)


def _check_known(judged: Collection[str], there: Dataset, kind: str, what: str) -> None:
    if unknown := sorted(set(judged).difference(name for (name,) in rows(there, ["id"]))):
        raise UsageError(
            f"qrels has {kind} ids that are not in {what}: {first_of(unknown)} ({len(unknown)} in all). "
            f"Remove these judgments, or add the ids to {what}."
        )


class OwnClassification(OwnData, QuietClassification):
    """The task that `classification_task` makes of texts with one label each."""

    kind, category, main_score = "Classification", "t2c", "accuracy"


class OwnMultilabelClassification(OwnData, AbsTaskMultilabelClassification):
    """The task that `classification_task` makes of texts with lists of labels."""

    kind, category, main_score = "MultilabelClassification", "t2c", "accuracy"

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, Mapping[str, Any]]:
        """Score a model on the same random draws each time; mteb's own class would continue its random sequence."""
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
    """Make a classification task from your own labelled texts.

    As in mteb, classifiers are fitted on a few random texts per label from `train` and scored on all of `test`; the main
    score is the mean accuracy. With one label per text, the classifier is a logistic regression. With lists of labels, it is
    mteb's multilabel task: five nearest neighbours, accuracy over complete label sets, and at most 3000 texts of `test`.
    `sts_task` explains mteb's prompts and cache; the task type is `"Classification"` or `"MultilabelClassification"`.

    Args:
        train: A `datasets.Dataset`, a `pandas.DataFrame` or a dict of lists.
        test: Other texts, in the same form.
        text: Column of the texts.
        label: Column of the labels: strings or integers, one per text, or lists of them.
        samples_per_label: Training texts per label, or fewer if `train` has fewer.
        n_experiments: Number of classifiers, each fitted on its own random texts.
        name: As for `sts_task`.

    Raises:
        TypeError: An argument is not a table, or a number is not an integer.
        ValueError: A column is missing; a text or label is of another type; `train` has fewer than two labels; a label is
            only in `test`; there are too few texts for mteb's multilabel task. Rows are counted from 0.

    Warns:
        DataWarning: Rows with an empty cell (None, NaN or blank) are left out; `test` has texts of `train`, or only one
            label; a label has fewer than `samples_per_label` training texts.

    Example:
        >>> train = {"text": ["fine", "good", "bad", "poor"], "label": ["praise", "praise", "blame", "blame"]}
        >>> test = {"text": ["very good", "really bad"], "label": ["praise", "blame"]}
        >>> classification_task(train, test, samples_per_label=2).metadata.name
        'MyClassification'
    """
    check_name(name)
    samples_per_label = positive_int(samples_per_label, "samples_per_label")
    n_experiments = positive_int(n_experiments, "n_experiments")
    training = custom_labels.read_labelled(train, "train", text, label)
    testing = custom_labels.read_labelled(test, "test", text, label)
    labels = custom_labels.check_labels(training, testing, samples_per_label)
    for message in custom_labels.remarks(training, testing, samples_per_label):
        warn(message, DataWarning)
    own = OwnMultilabelClassification if training.several else OwnClassification
    data = DatasetDict(
        {"train": custom_labels.labelled_dataset(training, labels), "test": custom_labels.labelled_dataset(testing, labels)}
    )
    description = f"{len(training.texts)} training texts, {len(testing.texts)} test texts, {len(labels)} labels."
    return own(name, data, description=description, samples_per_label=samples_per_label, n_experiments=n_experiments)
