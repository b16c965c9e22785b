"""The scoring suites: every size on the STS sets, only the ladder on slower tasks, and truncations of the width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, classification_task, evaluate, evaluate_truncations, pair_task, retrieval_task, sts_task
from st_matryoshka2d.sizes import full_size

__all__ = ["STS", "SUITES", "WHOLE", "score", "search_tasks"]

# "Size" of a model that is trained for all sizes.
WHOLE = "all sizes"

STS = ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
RETRIEVAL = ["cranfield", "cisi", "cacm", "wikiqa_test", "trecqa_test", "msmarco_trecdl_subset"]
# name -> the split that the classifier learns from
CLASSIFICATION = {"banking77": "train", "emotion": "train"}
TWEETS = {"tweeteval_emotion": "train", "tweeteval_sentiment": "val"}
# WiC's test labels are withheld
PAIRS = {"mrpc": "test", "rte": "dev", "scitail": "test", "wic": "val"}


def score(model: SentenceTransformer, suite: str, size: str, data: Path, ladder: Sequence[Size]) -> pd.DataFrame:
    """Return scores in percent: task, num_layers, dim, score, and further columns of the suite.

    Args:
        model: The trained model.
        suite: A key of `SUITES`.
        size: `WHOLE`, or the size for which the model was cut before training.
        data: The folder of data sets.
        ladder: The sizes of the whole model to compare methods at.
    """
    make_tasks, score_with = SUITES[suite]
    frame = score_with(model, make_tasks(data), size, ladder)
    wanted = frame["metric"] == METRICS[suite] if suite in METRICS else frame["is_main"]
    frame = frame.loc[wanted, [name for name in COLUMNS if name in frame]]
    return frame.assign(score=(100 * frame["score"]).round(3)).reset_index(drop=True)


COLUMNS = ["task", "truncation", "num_layers", "dim", "score"]

# Metrics other than mteb's main one. Accuracy at the best threshold on the cosine and F1 are
# MIPIC's; MRR is Starbucks'.
METRICS = {"pairs": "cosine_accuracy", "classification_widths": "f1", "mrr": "mrr_at_10"}


def _sts(data: Path) -> list[Any]:
    return [sts_task(pd.read_parquet(data / "sts" / name / "test.parquet"), name=name) for name in STS]


def _choosing(data: Path) -> list[Any]:
    """Build development tasks for choosing between recipes, so that the test sets stay unseen."""
    files = {"stsb-dev": "stsb/dev", "sickr-trial": "sickr/trial"}
    return [sts_task(pd.read_parquet(data / "sts" / f"{file}.parquet"), name=name) for name, file in files.items()]


def search_tasks(data: Path, names: Sequence[str]) -> list[Any]:
    """Build the search tasks with these names."""

    def table(name: str, part: str) -> pd.DataFrame:
        return pd.read_parquet(data / "retrieval" / name / f"{part}.parquet")

    return [retrieval_task(*(table(name, part) for part in ("corpus", "queries", "qrels")), name=name) for name in names]


def _retrieval(data: Path) -> list[Any]:
    return search_tasks(data, RETRIEVAL)


def _classification(data: Path, splits: Mapping[str, str] = CLASSIFICATION) -> list[Any]:
    def table(name: str, part: str) -> pd.DataFrame:
        return pd.read_parquet(data / "classification" / name / f"{part}.parquet")

    return [classification_task(table(name, split), table(name, "test"), name=name) for name, split in splits.items()]


def _with_tweets(data: Path) -> list[Any]:
    return _classification(data, CLASSIFICATION | TWEETS)


def _pairs(data: Path) -> list[Any]:
    def table(name: str, split: str) -> pd.DataFrame:
        return pd.read_parquet(data / "pair_classification" / name / f"{split}.parquet")

    return [pair_task(table(name, split), name=name) for name, split in PAIRS.items()]


def _everywhere(model: SentenceTransformer, tasks: list[Any], size: str, ladder: Sequence[Size]) -> pd.DataFrame:
    """Score every size that a model has: all depths of the whole model, all dims of a cut one."""
    if size != WHOLE:
        return _of_its_depth(model, tasks, size, [rung.dim for rung in ladder])
    return evaluate(model, tasks, dims=[rung.dim for rung in ladder]).to_frame()


def _of_its_depth(model: SentenceTransformer, tasks: list[Any], size: str, dims: Sequence[int]) -> pd.DataFrame:
    """Score a cut model; its depth in the result is the one in the whole model."""
    full = full_size(model)
    sizes = [Size(full.num_layers, dim) for dim in dims if dim <= full.dim]
    return evaluate(model, tasks, sizes=sizes).to_frame().assign(num_layers=Size.parse(size).num_layers)


def _across(model: SentenceTransformer, tasks: list[Any], size: str, _: Sequence[Size]) -> pd.DataFrame:
    """Score first texts or queries at every depth against second texts or documents at the full size."""
    if size != WHOLE:
        return pd.DataFrame(columns=[*COLUMNS, "is_main"])  # separate models share no space
    full = full_size(model)
    return evaluate(model, tasks, dims=[full.dim], documents=full).to_frame()


def _on_the_ladder(model: SentenceTransformer, tasks: list[Any], size: str, ladder: Sequence[Size]) -> pd.DataFrame:
    if size != WHOLE:
        return _of_its_depth(model, tasks, size, [Size.parse(size).dim])
    return evaluate(model, tasks, sizes=ladder).to_frame()


def _widths(model: SentenceTransformer, tasks: list[Any], size: str, ladder: Sequence[Size]) -> pd.DataFrame:
    """Score all layers at each of the ladder's dims."""
    if size != WHOLE:
        return _on_the_ladder(model, tasks, size, ladder)
    return evaluate(model, tasks, sizes=[Size(ladder[-1].num_layers, rung.dim) for rung in ladder]).to_frame()


def _truncations(model: SentenceTransformer, tasks: list[Any], size: str, _: Sequence[Size]) -> pd.DataFrame:
    frame = evaluate_truncations(model, tasks, seeds=3, windows=[]).grid.to_frame()
    return frame if size == WHOLE else frame.head(0)  # separate models have one width each


# Name -> function that builds the tasks, function that scores a model on them.
SUITES: dict[str, tuple[Callable[[Path], list[Any]], Callable[..., pd.DataFrame]]] = {
    "sts": (_sts, _everywhere),
    "ladder": (_sts, _on_the_ladder),
    "choosing": (_choosing, _on_the_ladder),
    "truncation": (_sts, _truncations),
    "retrieval": (_retrieval, _on_the_ladder),
    "mrr": (_retrieval, _on_the_ladder),
    "classification": (_classification, _on_the_ladder),
    "classification_widths": (_with_tweets, _widths),
    "pairs": (_pairs, _everywhere),
    "across": (_sts, _across),
    "retrieval_across": (_retrieval, _across),
}
