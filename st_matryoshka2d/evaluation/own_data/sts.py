"""Scored pairs of texts as a task."""

from __future__ import annotations

import warnings

from datasets import Dataset, DatasetDict
from mteb.abstasks.sts import AbsTaskSTS

from st_matryoshka2d.evaluation.own_data.tables import Table, check_columns, rows
from st_matryoshka2d.evaluation.own_data.task import OwnData, check_name
from st_matryoshka2d.evaluation.own_data.values import number, text

__all__ = ["OwnSTS", "sts_task"]


class OwnSTS(OwnData, AbsTaskSTS):
    """Pairs of the user's own; made by `sts_task`."""

    kind, category, main_score = "STS", "t2t", "cosine_spearman"


def sts_task(
    pairs: Table, *, sentence1: str = "sentence1", sentence2: str = "sentence2", score: str = "score", name: str = "MySTS"
) -> AbsTaskSTS:
    """Make a task of your own pairs of texts: how well do similarities order them as your scores do?

    The main score is Spearman's correlation of cosine similarities and your scores, so only the order of the scores counts.
    The task works in `evaluate` and in mteb itself, and needs no network.

    mteb (2.26) looks for a prompt of the model by the type, here `"STS"`; a prompt under the name of a task that is not
    its own is dropped with a warning. Its cache of results goes by the name alone: with other data, give `mteb.evaluate`
    another name or `cache=None`.

    Args:
        pairs: A `datasets.Dataset`, a `pandas.DataFrame` or a dict of lists.
        sentence1: Column of the first texts.
        sentence2: Column of the second texts.
        score: Column of the scores, on any scale; more is more similar.
        name: What the task is called in the results.

    Returns:
        An mteb task with its data. The revision in its metadata is a digest of the name and all rows.

    Raises:
        TypeError: `pairs` is not a table.
        ValueError: A column is missing or too short; a text is missing or empty; a score is no finite number; all scores
            are equal; the name is one of mteb's. Rows are counted from 0.

    Warns:
        UserWarning: A pair is there several times with different scores.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> pairs = {
        ...     "sentence1": ["a cat sat", "a cat sat", "it rains"],
        ...     "sentence2": ["a kitten sat", "he plays chess", "rain is falling"],
        ...     "score": [4.5, 0.0, 5.0],
        ... }
        >>> grid = evaluate(model, sts_task(pairs), num_layers=[3, 6], dims=[64, 384], show_progress_bar=False)
        >>> grid.tasks
        ['MySTS']
    """
    check_name(name)
    check_columns(pairs, "pairs", {"sentence1": sentence1, "sentence2": sentence2, "score": score})
    ones, others, scores = [], [], []
    for row, (one, other, value) in enumerate(rows(pairs, [sentence1, sentence2, score])):
        where = f"pairs, row {row}"
        ones.append(text(one, f"{where}, {sentence1}"))
        others.append(text(other, f"{where}, {sentence2}"))
        scores.append(number(value, f"{where}, {score}"))
    if len(scores) == 1:
        raise ValueError("pairs has one row; a correlation needs at least two, with different scores.")
    if len(set(scores)) == 1:
        raise ValueError(f"All {len(scores)} scores in pairs are {scores[0]:g}; a correlation needs at least two values.")
    if conflicts := _conflicts(ones, others, scores):
        warnings.warn(f"Pairs that are there several times with different scores: {conflicts}; all are kept.", stacklevel=2)

    data = Dataset.from_dict({"sentence1": ones, "sentence2": others, "score": scores})
    return OwnSTS(name, DatasetDict({"test": data}), description=f"{len(data)} pairs of texts.")


def _conflicts(ones: list[str], others: list[str], scores: list[float]) -> int:
    """How many distinct pairs have more than one score."""
    seen: dict[tuple[str, str], set[float]] = {}
    for one, other, score in zip(ones, others, scores, strict=True):
        seen.setdefault((one, other), set()).add(score)
    return sum(len(found) > 1 for found in seen.values())
