"""Make tasks from the user's own pairs of texts, with similarity scores or with labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.sts import AbsTaskSTS

from st_matryoshka2d.encoding.texts import LeftOut
from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.evaluation.custom_data import Table, check_columns, float_of, number, rows, score_of, shortened, text
from st_matryoshka2d.evaluation.tasks import OwnData, check_name


class OwnSTS(OwnData, AbsTaskSTS):
    """The task that `sts_task` makes."""

    kind, category, main_score = "STS", "t2t", "cosine_spearman"


def sts_task(
    pairs: Table, *, sentence1: str = "sentence1", sentence2: str = "sentence2", score: str = "score", name: str = "MySTS"
) -> AbsTaskSTS:
    """Make an STS task from your own pairs of texts with similarity scores.

    The main score is Spearman's correlation between cosine similarities and your scores. The task works in `evaluate` and in
    mteb itself, and needs no network. mteb (2.26) looks up the prompt of the model by the task type, here `"STS"`. Its own
    cache only distinguishes tasks by name: for `mteb.evaluate` on changed data, choose another name or `cache=None`.

    Args:
        pairs: A `datasets.Dataset`, a `pandas.DataFrame` or a dict of lists.
        sentence1: Column of the first texts.
        sentence2: Column of the second texts.
        score: Column of the scores, on any scale; higher means more similar.
        name: Name of the task in the results; no name of mteb.

    Raises:
        TypeError: `pairs` is not a table.
        ValueError: A column is missing; a text is no string; a score is not a finite number; all are equal. Rows are counted
            from 0.

    Warns:
        DataWarning: Rows with an empty cell (None, NaN or blank) are left out, and so are pairs with different scores; a
            pair that is repeated with the same score counts once.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> texts = {"sentence1": ["a cat sat", "it rains"], "sentence2": ["a kitten sat", "he plays chess"]}
        >>> task = sts_task({**texts, "score": [4.5, 0]})
        >>> evaluate(model, task, sizes=["3L-64d"], show_progress_bar=False).tasks
        ['MySTS']
    """
    check_name(name)
    data = _read(pairs, {"sentence1": sentence1, "sentence2": sentence2, "score": score}, number)
    scores = data["score"][:]
    if len(scores) < 2:
        full = "one row" if scores else "no row with all cells"
        raise UsageError(f"pairs has {full}; a correlation needs at least two, with different scores.")
    if len(set(scores)) == 1:
        raise UsageError(f"All {len(scores)} scores in pairs are {scores[0]:g}; a correlation needs at least two values.")
    return OwnSTS(name, DatasetDict({"test": data}), description=f"{len(data)} pairs of texts.")


class OwnPairClassification(OwnData, AbsTaskPairClassification):
    """The task that `pair_task` makes."""

    kind, category, main_score = "PairClassification", "t2t", "max_ap"
    label_column_name = "label"


def pair_task(
    pairs: Table, *, sentence1: str = "sentence1", sentence2: str = "sentence2", label: str = "label", name: str = "MyPairs"
) -> AbsTaskPairClassification:
    """Make a pair classification task from your own pairs of texts that belong together (1) or do not (0).

    No classifier is fitted: the pairs are ranked by their similarity. The main score is mteb's: the average precision of the
    1s, by the similarity function (cosine, dot product, ...) where it is highest. `metric="cosine_accuracy"` is the share of
    pairs that the best threshold on the cosine puts on the right side, and `"cosine_f1"` the best F1; both thresholds are
    chosen on these same pairs. `sts_task` explains mteb's prompts and cache; the task type is `"PairClassification"`.

    Args:
        pairs: A `datasets.Dataset`, a `pandas.DataFrame` or a dict of lists.
        sentence1: Column of the first texts.
        sentence2: Column of the second texts.
        label: Column of the labels: 1 or True for texts that belong together, such as duplicates, and 0 or False for others.
        name: As for `sts_task`.

    Raises:
        TypeError: `pairs` is not a table.
        ValueError: A column is missing; a text is no string; a label is not 0 or 1; all are equal. Rows are counted from 0.

    Warns:
        DataWarning: As for `sts_task`.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> texts = {"sentence1": ["a cat sat", "it rains"], "sentence2": ["a kitten sat", "he plays chess"]}
        >>> grid = evaluate(model, pair_task({**texts, "label": [1, 0]}), sizes=["3L-64d"], show_progress_bar=False)
        >>> grid.score("3L-64d", metric="cosine_accuracy")
        1.0
    """
    check_name(name)
    data = _read(pairs, {"sentence1": sentence1, "sentence2": sentence2, "label": label}, _label)
    labels = data["label"][:]
    if not labels:
        raise UsageError("pairs has no row with all cells; average precision needs both labels, 0 and 1.")
    if len(set(labels)) == 1:
        told = f"All {len(labels)} labels in pairs are" if len(labels) > 1 else "The only label in pairs is"
        raise UsageError(f"{told} {labels[0]}; average precision needs both labels, 0 and 1.")
    return OwnPairClassification(name, DatasetDict({"test": data}), description=f"{len(data)} pairs of texts.")


def _label(value: Any, where: str) -> int:
    """Check a label and return it as 0 or 1."""
    found = float(value) if isinstance(value, (bool, np.bool_)) else float_of(value)
    if found not in (0, 1):
        expected = "a label must be 1 (the texts belong together) or 0 (they do not)"
        raise UsageError(f"{where}: {expected}, got {shortened(value)}. Convert the labels, or drop the row.")
    return int(found)


def _read(pairs: Table, columns: Mapping[str, str], check: Callable[[Any, str], float]) -> Dataset:
    """Read the rows without an empty cell; `columns` (new name -> old name) ends with the numbers, which `check` reads."""
    check_columns(pairs, "pairs", columns)
    sentence1, sentence2, values = columns.values()
    found: list[tuple[str, str, float]] = []
    left_out = LeftOut("pairs")
    for row, (one, other, value) in enumerate(rows(pairs, [sentence1, sentence2, values])):
        if left_out.lacks(one, other, value := score_of(value)):
            continue
        ones, others = text(one, f"pairs, row {row}, {sentence1}"), text(other, f"pairs, row {row}, {sentence2}")
        found.append((ones, others, check(value, f"pairs, row {row}, {values}")))
    left_out.tell()
    return Dataset.from_dict(_once(pd.DataFrame(found, columns=list(columns))).to_dict("list"))


def _once(pairs: pd.DataFrame) -> pd.DataFrame:
    """Keep one row of each pair, none if its scores differ: a repeated pair is no further example."""
    texts, number = list(pairs)[:2], list(pairs)[2]
    different = pairs.drop_duplicates()
    conflict = different.duplicated(texts, keep=False)
    if repeated := len(pairs) - len(different):
        told = f"Rows that repeat a pair and its {number}: {repeated}. Each pair counts once."
        warn(told, DataWarning)
    if conflicts := len(different[conflict].drop_duplicates(texts)):
        told = f"Pairs that are repeated with different {number}s: {conflicts}. They are left out."
        warn(told, DataWarning)
    return different[~conflict]
