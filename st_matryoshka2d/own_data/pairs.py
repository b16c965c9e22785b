"""Make tasks from the user's own pairs of texts, with scores or labels."""

from __future__ import annotations

from datasets import Dataset, DatasetDict
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.sts import AbsTaskSTS

from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.own_data.table import Table, as_numbers, check_cells, check_texts, filled_rows
from st_matryoshka2d.own_data.task import OwnData, check_name


class OwnSTS(OwnData, AbsTaskSTS):
    """The task that `sts_task` makes."""

    kind, category, main_score = "STS", "t2t", "cosine_spearman"


def sts_task(
    pairs: Table, *, sentence1: str = "sentence1", sentence2: str = "sentence2", score: str = "score", name: str = "MySTS"
) -> AbsTaskSTS:
    """Make an STS task from your own pairs of texts with similarity scores.

    The main score is Spearman's correlation between cosine similarities and your scores. The task
    works in `evaluate` and in mteb itself, and needs no network. mteb (2.26) looks up the prompt of
    the model by the task type, here `"STS"`. Its own cache only distinguishes tasks by name: for
    `mteb.evaluate` on changed data, choose another name or `cache=None`.

    Args:
        pairs: A `datasets.Dataset`, a `pandas.DataFrame` or a dict of lists.
        sentence1: Column of the first texts.
        sentence2: Column of the second texts.
        score: Column of the scores, on any scale; higher means more similar.
        name: Name of the task in the results; no name of mteb.

    Raises:
        TypeError: `pairs` is not a table.
        ValueError: A column is missing; a text is no string; a score is not a finite number; all
            are equal. Rows are named by the index of a `pandas.DataFrame`, and counted from 0 in others.

    Warns:
        DataWarning: Rows with an empty cell (None, NaN or blank) are left out, and so are pairs
            with different scores; a pair that is repeated with the same score counts once.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> texts = {"sentence1": ["a cat sat", "it rains"], "sentence2": ["a kitten sat", "tea"]}
        >>> task = sts_task({**texts, "score": [4.5, 0]})
        >>> evaluate(model, task, sizes=["3L-64d"], show_progress_bar=False).tasks
        ['MySTS']
    """
    check_name(name)
    data = _pairs(pairs, sentence1=sentence1, sentence2=sentence2, score=score)
    return OwnSTS(name, data, description=f"{len(data['test'])} pairs of texts.")


class OwnPairClassification(OwnData, AbsTaskPairClassification):
    """The task that `pair_task` makes."""

    kind, category, main_score = "PairClassification", "t2t", "max_ap"
    label_column_name = "label"


def pair_task(
    pairs: Table, *, sentence1: str = "sentence1", sentence2: str = "sentence2", label: str = "label", name: str = "MyPairs"
) -> AbsTaskPairClassification:
    """Make a pair classification task from pairs of texts that belong together (1) or do not (0).

    No classifier is fitted: the pairs are ranked by their similarity. The main score is mteb's: the
    average precision of the 1s, by the similarity function (cosine, dot product, ...) where it is
    highest. `metric="cosine_accuracy"` is the share of pairs that the best threshold on the cosine
    puts on the right side, and `"cosine_f1"` the best F1; both thresholds are chosen on these same
    pairs. The task type, for prompts, is `"PairClassification"`. Errors and warnings are those of
    `sts_task`; a label that is not 0 or 1 is a `ValueError`.

    Args:
        pairs: As for `sts_task`, and so are `sentence1`, `sentence2` and `name`.
        sentence1: Column of the first texts.
        sentence2: Column of the second texts.
        label: Column of the labels: 1 or True for texts that belong together, such as duplicates,
            and 0 or False for others.
        name: Name of the task in the results.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> texts = {"sentence1": ["a cat sat", "it rains"], "sentence2": ["a kitten sat", "tea"]}
        >>> task = pair_task({**texts, "label": [1, 0]})
        >>> grid = evaluate(model, task, sizes=["3L-64d"], show_progress_bar=False)
        >>> grid.score("3L-64d", metric="cosine_accuracy")
        1.0
    """
    check_name(name)
    data = _pairs(pairs, sentence1=sentence1, sentence2=sentence2, label=label)
    return OwnPairClassification(name, data, description=f"{len(data['test'])} pairs of texts.")


def _pairs(given: Table, **columns: str) -> DatasetDict:
    """Read pairs, each once and none with two values; the last column has the numbers."""
    kind, (first, second, value) = list(columns)[-1], columns.values()
    rows = filled_rows(given, "pairs", numbers=value, **columns)
    check_texts(rows[first], "pairs")
    check_texts(rows[second], "pairs")
    numbers = as_numbers(rows[value], "pairs")
    if kind == "label":
        right = numbers.isin([0, 1])
        check_cells(right, rows[value], "pairs", "1 (the texts belong together) or 0 (they do not)")
    rows = rows.assign(**{value: numbers.astype(int) if kind == "label" else numbers})
    different = rows.drop_duplicates()
    conflict = different.duplicated([first, second], keep=False)
    if repeated := len(rows) - len(different):
        warn(f"Rows that repeat a pair and its {kind}: {repeated}. Each pair counts once.", DataWarning)
    if conflicts := len(different[conflict].drop_duplicates([first, second])):
        warn(f"Pairs that are repeated with different {kind}s: {conflicts}. They are left out.", DataWarning)
    pairs = different[~conflict].set_axis(list(columns), axis=1)
    if (values := pairs[kind].nunique()) < 2:
        raise UsageError(f"pairs must have at least two different {kind}s, got {values} in {len(pairs)} different pairs.")
    return DatasetDict({"test": Dataset.from_dict(pairs.to_dict("list"))})
