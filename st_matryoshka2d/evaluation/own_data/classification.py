"""Labelled texts as a task."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.multilabel_classification import AbsTaskMultilabelClassification

from st_matryoshka2d.evaluation.own_data.labels import Label, Labelled, check_labels, read_labelled
from st_matryoshka2d.evaluation.own_data.tables import Table
from st_matryoshka2d.evaluation.own_data.task import OwnData, check_name
from st_matryoshka2d.sizes import positive_int

__all__ = ["OwnClassification", "OwnMultilabelClassification", "classification_task"]

# mteb's classifier of several labels asks this many neighbours, and fails with fewer texts.
_NEIGHBOURS = 5


class OwnClassification(OwnData, AbsTaskClassification):
    """Texts of the user's own with a label each; made by `classification_task`."""

    kind, category, main_score = "Classification", "t2c", "accuracy"


class OwnMultilabelClassification(OwnData, AbsTaskMultilabelClassification):
    """Texts of the user's own with any number of labels each; made by `classification_task`."""

    kind, category, main_score = "MultilabelClassification", "t2c", "accuracy"

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, Mapping[str, Any]]:
        """Score a model on the same draws of training texts each time.

        mteb's own class goes on drawing where the last call stopped, so that two sizes would learn from different texts.
        """
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
    `test`; the main score is the mean accuracy. With one label for each text the classifier is a logistic regression, with
    lists of labels it is mteb's multilabel task with the five nearest neighbours, where accuracy asks for all labels of a
    text and a `test` of more than 3000 texts is cut to as many. The task works in `evaluate` and in mteb itself, and needs
    no network.

    mteb (2.26) looks for a prompt of the model by the type, here `"Classification"` or `"MultilabelClassification"`; a
    prompt under the name of a task that is not its own is dropped with a warning. Its cache of results goes by the name
    alone: with other data, give `mteb.evaluate` another name or `cache=None`.

    Args:
        train: A `datasets.Dataset`, a `pandas.DataFrame` or a dict of lists.
        test: The same, with other texts.
        text: Column of the texts.
        label: Column of the labels, texts or integers; one for each text, or lists of them.
        samples_per_label: Texts of each label that a classifier learns from; all there are where there are fewer.
        n_experiments: Classifiers, each with a draw of its own.
        name: What the task is called in the results.

    Returns:
        An mteb task with its data. The revision in its metadata is a digest of the name, all rows and both numbers.

    Raises:
        TypeError: A table is none, or a number is not an integer.
        ValueError: A column is missing; a text is missing or empty; a label is missing; `train` has fewer than two labels;
            a label is in `test` alone; texts are too few for mteb's multilabel task; the name is one of mteb's.
            Rows are counted from 0.

    Warns:
        UserWarning: Texts are in `train` and in `test`; a label has fewer than `samples_per_label` texts to learn from.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> train = {"text": ["fine", "good", "bad", "poor"], "label": ["praise", "praise", "blame", "blame"]}
        >>> test = {"text": ["very good", "really bad"], "label": ["praise", "blame"]}
        >>> task = classification_task(train, test, samples_per_label=2)
        >>> grid = evaluate(model, task, num_layers=6, dims=[64, 384], show_progress_bar=False)
        >>> grid.tasks
        ['MyClassification']
    """
    check_name(name)
    samples_per_label = positive_int(samples_per_label, "samples_per_label")
    n_experiments = positive_int(n_experiments, "n_experiments")
    learnt, asked = read_labelled(train, "train", text, label), read_labelled(test, "test", text, label)
    labels = check_labels(learnt, asked)
    if learnt.several:
        _check_neighbours(learnt, asked, samples_per_label)
    for remark in _remarks(learnt, asked, samples_per_label):
        warnings.warn(remark, stacklevel=2)

    own = OwnMultilabelClassification if learnt.several else OwnClassification
    return own(
        name,
        DatasetDict({"train": _dataset(learnt, labels), "test": _dataset(asked, labels)}),
        description=f"{len(learnt.texts)} texts to learn from, {len(asked.texts)} to classify, {len(labels)} labels.",
        samples_per_label=samples_per_label,
        n_experiments=n_experiments,
    )


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
