"""The scoring suites: every size on the STS sets, only the ladder on slower tasks, and truncations of the width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import (
    Size,
    classification_task,
    evaluate,
    evaluate_truncations,
    pair_task,
    retrieval_task,
    sizes_ladder,
    sts_task,
)
from st_matryoshka2d.sizes import full_size

__all__ = ["STS", "SUITES", "WHOLE", "score", "search_tasks"]

# "Size" of a model that is trained for all sizes.
WHOLE = "all sizes"

STS = ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
RETRIEVAL = ["cranfield", "cisi", "cacm", "wikiqa_test", "trecqa_test", "msmarco_trecdl_subset"]
CLASSIFICATION = ["banking77", "emotion"]
PAIRS = {"mrpc": "test", "rte": "dev", "scitail": "test", "wic": "val"}  # WiC's test labels are withheld


def score(model: SentenceTransformer, suite: str, size: str, data: Path) -> pd.DataFrame:
    """Return scores in percent: task, num_layers, dim, score, and further columns of the suite.

    Args:
        model: The trained model.
        suite: A key of `SUITES`.
        size: `WHOLE`, or the size to which the model was cut before training; a cut model is scored at that size only.
        data: The folder of data sets.
    """
    make_tasks, score_with = SUITES[suite]
    frame = score_with(model, make_tasks(data), size)
    wanted = frame["metric"] == METRICS[suite] if suite in METRICS else frame["is_main"]
    frame = frame.loc[wanted, [name for name in COLUMNS if name in frame]]
    return frame.assign(score=(100 * frame["score"]).round(3)).reset_index(drop=True)


COLUMNS = ["task", "truncation", "num_layers", "dim", "score"]

# Metrics other than mteb's main one. Accuracy at the best threshold on the cosine is MIPIC's, section C.
METRICS = {"pairs": "cosine_accuracy"}


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


def _classification(data: Path) -> list[Any]:
    def table(name: str, part: str) -> pd.DataFrame:
        return pd.read_parquet(data / "classification" / name / f"{part}.parquet")

    return [classification_task(table(name, "train"), table(name, "test"), name=name) for name in CLASSIFICATION]


def _pairs(data: Path) -> list[Any]:
    def table(name: str, split: str) -> pd.DataFrame:
        return pd.read_parquet(data / "pair_classification" / name / f"{split}.parquet")

    return [pair_task(table(name, split), name=name) for name, split in PAIRS.items()]


def _everywhere(model: SentenceTransformer, tasks: list[Any], size: str) -> pd.DataFrame:
    if size != WHOLE:
        return _on_the_ladder(model, tasks, size)
    return evaluate(model, tasks, dims=[rung.dim for rung in sizes_ladder(model)]).to_frame()


def _across(model: SentenceTransformer, tasks: list[Any], size: str) -> pd.DataFrame:
    """Score first texts or queries at every depth against second texts or documents at the full size."""
    if size != WHOLE:
        return pd.DataFrame(columns=[*COLUMNS, "is_main"])  # separate models share no space
    full = full_size(model)
    return evaluate(model, tasks, dims=[full.dim], documents=full).to_frame()


def _on_the_ladder(model: SentenceTransformer, tasks: list[Any], size: str) -> pd.DataFrame:
    ladder = sizes_ladder(model)
    if size == WHOLE:
        return evaluate(model, tasks, sizes=ladder).to_frame()
    trained = Size.parse(size)
    grid = evaluate(model, tasks, sizes=[ladder[-1]]).to_frame()
    return grid.assign(num_layers=trained.num_layers, dim=trained.dim)


def _truncations(model: SentenceTransformer, tasks: list[Any], size: str) -> pd.DataFrame:
    frame = evaluate_truncations(model, tasks, seeds=3, windows=[]).grid.to_frame()
    return frame if size == WHOLE else frame.head(0)  # separate models have one width each


# Name -> function that builds the tasks, function that scores a model on them.
SUITES: dict[str, tuple[Callable[[Path], list[Any]], Callable[..., pd.DataFrame]]] = {
    "sts": (_sts, _everywhere),
    "ladder": (_sts, _on_the_ladder),
    "choosing": (_choosing, _on_the_ladder),
    "truncation": (_sts, _truncations),
    "retrieval": (_retrieval, _on_the_ladder),
    "classification": (_classification, _on_the_ladder),
    "pairs": (_pairs, _everywhere),
    "across": (_sts, _across),
    "retrieval_across": (_retrieval, _across),
}
