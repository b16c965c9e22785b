"""Labelled texts: one label each, or lists of labels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from datasets import ClassLabel, Dataset

from st_matryoshka2d.evaluation.own_data.tables import Table, check_columns, rows
from st_matryoshka2d.evaluation.own_data.values import first_of, text
from st_matryoshka2d.texts import check_text

__all__ = ["Label", "Labelled", "check_labels", "read_labelled"]

Label: TypeAlias = str | int


@dataclass(frozen=True)
class Labelled:
    """Texts and the labels of each; `several` says whether the table has lists of labels."""

    texts: list[str]
    labels: list[tuple[Label, ...]]
    several: bool
    names: list[str] | None

    def counts(self) -> Counter[Label]:
        """How many texts have each label."""
        return Counter(label for labels in self.labels for label in dict.fromkeys(labels))


def read_labelled(table: Table, what: str, text_column: str, label_column: str) -> Labelled:
    """The texts of a split and their labels.

    Args:
        table: What the user passed.
        what: How the argument is called.
        text_column: Column of the texts.
        label_column: Column of the labels.

    Raises:
        TypeError: Not a table.
        ValueError: A column is missing, a text is missing or empty, a label is no label, or only some labels are lists.
    """
    check_columns(table, what, {"text": text_column, "label": label_column})
    texts, labels, several = [], [], False
    for row, (words, value) in enumerate(rows(table, [text_column, label_column])):
        where = f"{what}, row {row}, {label_column}"
        is_list = isinstance(value, (list, tuple, np.ndarray))
        if row == 0:
            several = is_list
        elif is_list != several:
            raise ValueError(
                f"{where}: expected {'a list of labels' if several else 'one label'} as in row 0, got {value!r}."
            )
        texts.append(text(words, f"{what}, row {row}, {text_column}"))
        labels.append(tuple(_label(label, where) for label in (value if is_list else [value])))
    return Labelled(texts, labels, several, _names(table, label_column))


def check_labels(train: Labelled, test: Labelled) -> list[Label]:
    """All labels, in the order in which they are numbered.

    Args:
        train: What a classifier learns from.
        test: What it is scored on.

    Raises:
        ValueError: The splits differ in the kind of labels, there are fewer than two, or some are in `test` alone.
    """
    if train.several != test.several:
        kinds = ["lists of labels" if split.several else "one label for each text" for split in (train, test)]
        raise ValueError(f"train has {kinds[0]}, test has {kinds[1]}; both need the same.")
    if train.names and test.names and train.names != test.names:
        raise ValueError(f"The labels of train and test are numbered differently: {train.names} and {test.names}.")
    learnt, asked = set(train.counts()), set(test.counts())
    if len({type(label) for label in learnt | asked}) > 1:
        texts, numbers = (sorted(label for label in learnt | asked if isinstance(label, kind)) for kind in (str, int))
        raise ValueError(f"Labels are all texts or all integers; got {first_of(texts)} and {first_of(numbers)}.")
    if len(learnt) < 2:
        raise ValueError(f"train needs at least two different labels, got {sorted(learnt)}.")
    if unlearnt := sorted(asked - learnt):
        raise ValueError(
            f"Labels that occur in test alone: {first_of(unlearnt)} ({len(unlearnt)} in all). "
            "No classifier can learn them: add them to train or drop their texts."
        )
    # mteb's average precision wants the two labels of a binary test to be 0 and 1: those of the test come first.
    return sorted(learnt, key=lambda label: (label not in asked, label))


def _label(value: Any, where: str) -> Label:
    if isinstance(value, Integral):
        return int(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: a label is a text or an integer, got {value!r}. Mend it or drop the row.")
    check_text(value, where)
    return value


def _names(table: Table, column: str) -> list[str] | None:
    """The names that a `Dataset` has for its numbered labels."""
    feature = table.features[column] if isinstance(table, Dataset) else None
    feature = getattr(feature, "feature", feature)
    return list(feature.names) if isinstance(feature, ClassLabel) else None
