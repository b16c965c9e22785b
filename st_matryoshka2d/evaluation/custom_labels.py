"""Read and check labelled texts, for classification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from datasets import ClassLabel, Dataset, Features, List, Value

from st_matryoshka2d.encoding.texts import LeftOut
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.custom_data import Table, check_columns, first_of, rows, text

Label: TypeAlias = str | int

# mteb's multilabel classifier uses this many neighbours, and fails with fewer texts.
_NEIGHBOURS = 5


@dataclass(frozen=True)
class Labelled:
    """Texts with labels; `several`: the labels are lists; `names`: class names of numbered labels."""

    texts: list[str]
    labels: list[tuple[Label, ...]]
    several: bool
    names: list[str] | None

    def counts(self) -> Counter[Label]:
        """Count the texts of each label."""
        return Counter(label for labels in self.labels for label in dict.fromkeys(labels))


def read_labelled(table: Table, what: str, text_column: str, label_column: str) -> Labelled:
    """Read the texts of a split and their labels."""
    check_columns(table, what, {"text": text_column, "label": label_column})
    texts: list[str] = []
    labels: list[tuple[Label, ...]] = []
    several, left_out = False, LeftOut(what)
    for row, (words, value) in enumerate(rows(table, [text_column, label_column])):
        if left_out.lacks(words, value):
            continue
        where = f"{what}, row {row}, {label_column}"
        is_list = isinstance(value, (list, tuple, np.ndarray))
        several = several if texts else is_list
        if is_list != several:
            raise UsageError(
                f"{where}: expected {'a list of labels' if several else 'one label'} as in the first row, got {value!r}."
            )
        texts.append(text(words, f"{what}, row {row}, {text_column}"))
        labels.append(tuple(_label(label, where) for label in (value if is_list else [value])))
    left_out.tell()
    feature = table.features[label_column] if isinstance(table, Dataset) else None
    feature = getattr(feature, "feature", feature)  # of a list
    return Labelled(texts, labels, several, list(feature.names) if isinstance(feature, ClassLabel) else None)


def check_labels(train: Labelled, test: Labelled, samples_per_label: int) -> list[Label]:
    """Check the labels of both splits and return all of them in the order of their numbers."""
    if train.several != test.several:
        kinds = ["lists of labels" if split.several else "one label for each text" for split in (train, test)]
        raise UsageError(f"train has {kinds[0]}, test has {kinds[1]}; both need the same.")
    if train.names and test.names and train.names != test.names:
        raise UsageError(f"The labels of train and test are numbered differently: {train.names} and {test.names}.")
    learnt, asked = set(train.counts()), set(test.counts())
    if len({type(label) for label in learnt | asked}) > 1:
        texts, numbers = (sorted(label for label in learnt | asked if isinstance(label, kind)) for kind in (str, int))
        raise UsageError(f"Labels must be all strings or all integers; got {first_of(texts)} and {first_of(numbers)}.")
    if len(learnt) < 2:
        raise UsageError(f"train needs at least two different labels, got {sorted(learnt)}.")
    if unlearnt := sorted(asked - learnt):
        raise UsageError(
            f"Labels that are only in test: {first_of(unlearnt)} ({len(unlearnt)} in all). "
            "No classifier can learn them. Add them to train or drop their texts."
        )
    labelled = sum(map(bool, train.labels))
    if train.several and min(labelled, samples_per_label) < _NEIGHBOURS:
        raise UsageError(
            f"With lists of labels, mteb uses {_NEIGHBOURS} nearest neighbours: train needs {_NEIGHBOURS} texts with a "
            f"label, got {labelled}, and samples_per_label must be {_NEIGHBOURS} or more, got {samples_per_label}."
        )
    if train.several and len(asked) < 2:
        raise UsageError(f"With lists of labels, test needs at least two different labels, got {list(asked)}.")
    # mteb's average precision needs labels 0 and 1 in a binary test, so the labels of the test come first.
    return sorted(learnt, key=lambda label: (label not in asked, label))


def _label(value: Any, where: str) -> Label:
    if isinstance(value, Integral):
        return int(value)
    return text(value, where, "a label must be a string or an integer, got", " Fix it or drop the row.")


def remarks(train: Labelled, test: Labelled, samples_per_label: int) -> Iterator[str]:
    """Warn of texts in both splits, and of rare labels."""
    seen = set(train.texts)
    if leaked := sum(text in seen for text in test.texts):
        yield f"Texts of test that are also in train: {leaked} of {len(test.texts)}. They make the scores too high."
    if not test.several and len(asked := test.counts()) == 1:
        yield f"All texts of test have the label {next(iter(asked))!r}, so the score says nothing about the other labels."
    counts = train.counts()
    if rare := [label for label, count in counts.items() if count < samples_per_label]:
        rarest = min(rare, key=counts.__getitem__)
        yield (
            f"Labels with fewer than samples_per_label={samples_per_label} texts in train: {len(rare)} (the rarest, "
            f"{rarest!r}, has {counts[rarest]}). All of their texts are used."
        )


def labelled_dataset(split: Labelled, labels: list[Label]) -> Dataset:
    """Make a data set with labels as `ClassLabel`."""
    number = {label: index for index, label in enumerate(labels)}
    numbered = [[number[label] for label in row] for row in split.labels]
    kind = ClassLabel(names=[str(label) for label in labels])
    features = Features({"text": Value("string"), "label": List(kind) if split.several else kind})
    cells = {"text": split.texts, "label": numbered if split.several else [row[0] for row in numbered]}
    return Dataset.from_dict(cells, features=features)
