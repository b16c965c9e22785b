"""Make classification tasks from the user's own labelled texts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.multilabel_classification import AbsTaskMultilabelClassification

from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.own_data.table import Table, as_names, check_cells, check_texts, filled_rows
from st_matryoshka2d.own_data.task import OwnData, check_name
from st_matryoshka2d.sizes import positive_int


class OwnClassification(OwnData, AbsTaskClassification):
    """The task that `classification_task` makes of texts with one label each."""

    kind, category, main_score = "Classification", "t2c", "accuracy"


class OwnMultilabelClassification(OwnData, AbsTaskMultilabelClassification):
    """The task that `classification_task` makes of texts with lists of labels."""

    kind, category, main_score = "MultilabelClassification", "t2c", "accuracy"

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, Mapping[str, Any]]:
        """Score a model on the same random draws each time; mteb would go on in its sequence."""
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

    As in mteb, classifiers are fitted on a few random texts per label from `train` and scored on
    all of `test`; the main score is the mean accuracy. With one label per text, the classifier is a
    logistic regression. With lists of labels, it is mteb's multilabel task: five nearest
    neighbours, accuracy over complete label sets, and at most 3000 texts of `test`. The task type,
    for prompts, is `"Classification"` or `"MultilabelClassification"`.

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
        ValueError: A column is missing; a text or label is of another type; `train` has fewer than
            two labels; a label is only in `test`; there are too few texts for mteb's multilabel
            task. Rows are named as for `sts_task`.

    Warns:
        DataWarning: Rows with an empty cell (None, NaN or blank) are left out; `test` has texts of
            `train`, or only one label; a label has fewer than `samples_per_label` training texts.

    Example:
        >>> train = {"text": ["fine", "good", "bad", "poor"], "label": ["yes", "yes", "no", "no"]}
        >>> test = {"text": ["very good", "really bad"], "label": ["yes", "no"]}
        >>> classification_task(train, test, samples_per_label=2).metadata.name
        'MyClassification'
    """
    check_name(name)
    samples_per_label = positive_int(samples_per_label, "samples_per_label")
    n_experiments = positive_int(n_experiments, "n_experiments")
    training, several = _labelled(train, "train", text=text, label=label)
    testing, also_several = _labelled(test, "test", text=text, label=label)
    numbered = [names for table in (train, test) if (names := _class_names(table, label))]
    if numbered[1:] and numbered[0] != numbered[1]:
        raise UsageError(f"The labels of train and test are numbered differently: {numbered}.")
    if several != also_several:
        raise UsageError("Of train and test, one has lists of labels; both or none must have them.")
    labels = _all_labels(training, testing, samples_per_label if several else None)
    _warn_of_labels(training, testing, samples_per_label)
    kind = ClassLabel(names=list(map(str, labels)))
    features = Features({"text": Value("string"), "label": List(kind) if several else kind})
    data = DatasetDict()
    for split, rows in (("train", training), ("test", testing)):
        numbers: list[Any] = [[labels.index(label) for label in row] for row in rows["label"]]
        cells = {"text": [*rows["text"]], "label": numbers if several else np.ravel(numbers)}
        data[split] = Dataset.from_dict(cells, features=features)
    counts = f"{len(training)} training texts, {len(testing)} test texts, {len(labels)} labels."
    own = OwnMultilabelClassification if several else OwnClassification
    settings = {"samples_per_label": samples_per_label, "n_experiments": n_experiments}
    return own(name, data, description=counts, **settings)


def _labelled(table: Table, what: str, **columns: str) -> tuple[pd.DataFrame, bool]:
    """Read texts and their lists of labels; tell whether the labels were lists."""
    rows = filled_rows(table, what, **columns)
    texts, cells = (rows[column] for column in columns.values())
    check_texts(texts, what)
    lists = cells.map(lambda cell: isinstance(cell, (list, tuple, np.ndarray)))
    several = bool(lists.iloc[0])
    kind = "a list of labels" if several else "one label"
    check_cells(lists == several, cells, what, f"{kind} as in the first row")
    labels = cells if several else cells.map(lambda cell: [cell])
    place = labels.index.repeat(labels.map(len))
    flat = pd.Series([*chain(*labels)], place, dtype=object, name=cells.name)
    as_names(flat, what)
    plain = [[x if isinstance(x, str) else int(x) for x in dict.fromkeys(row)] for row in labels]
    return pd.DataFrame({"text": texts, "label": pd.Series(plain, texts.index)}), several


def _class_names(table: Table, label: str) -> list[str] | None:
    feature = table.features[label] if isinstance(table, Dataset) else None
    return getattr(getattr(feature, "feature", feature), "names", None)  # perhaps of a list


def _all_labels(train: pd.DataFrame, test: pd.DataFrame, several: int | None) -> list[Any]:
    """Return the labels in the order of their numbers; `several`: texts of each, if in lists."""
    learnt, asked = ({label for row in rows["label"] for label in row} for rows in (train, test))
    examples = {type(label): label for label in sorted(learnt | asked, key=str, reverse=True)}
    if len(examples) > 1:
        raise UsageError(f"Labels must be all strings or all integers; got {[*examples.values()]}.")
    if len(learnt) < 2:
        raise UsageError(f"train needs at least two different labels, got {[*learnt]}.")
    if unlearnt := sorted(asked - learnt):
        raise UsageError(
            f"Labels that are only in test: {unlearnt[:3]} ({len(unlearnt)} in all). Add them to train or drop their texts."
        )
    # mteb's multilabel classifier uses five neighbours, and fails with fewer texts.
    labelled = int((train["label"].map(len) > 0).sum())
    if several and (min(labelled, several) < 5 or len(asked) < 2):
        raise UsageError(
            "With lists of labels, mteb needs two labels in test and, for 5 nearest neighbours, 5 "
            f"labelled texts in train and samples_per_label=5; got {len(asked)}, {labelled} and "
            f"{several}."
        )
    # mteb's average precision needs labels 0 and 1 in a binary test, so these are first.
    return sorted(learnt, key=lambda label: (label not in asked, label))


def _warn_of_labels(train: pd.DataFrame, test: pd.DataFrame, samples_per_label: int) -> None:
    """Warn of texts in both splits, of a single label and of rare ones."""
    if leaked := int(test["text"].isin(train["text"]).sum()):
        told = f"Texts of test that are also in train: {leaked} of {len(test)}. They make the scores too high."
        warn(told, DataWarning)
    if len(asked := test["label"].explode().unique()) == 1:
        told = f"All texts of test have the label {asked[0]!r}, so the score says nothing about the other labels."
        warn(told, DataWarning)
    counts = train["label"].explode().value_counts()
    if rare := int((counts < samples_per_label).sum()):
        warn(
            f"Labels with fewer than samples_per_label={samples_per_label} texts in train: {rare} (the rarest, "
            f"{counts.index[-1]!r}, has {counts.iloc[-1]}). All of their texts are used.",
            DataWarning,
        )
