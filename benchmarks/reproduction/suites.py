"""What is scored: every size on the STS sets, and the sizes of the ladder on what takes longer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, classification_task, evaluate, retrieval_task, sizes_ladder, sts_task

__all__ = ["SUITES", "score", "sts_tasks"]

STS = ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
RETRIEVAL = ["cranfield", "cisi", "cacm", "wikiqa_test", "trecqa_test", "msmarco_trecdl_subset"]
CLASSIFICATION = ["banking77", "emotion"]


def sts_tasks(data: Path) -> list[Any]:
    """The test sets of the seven."""
    return [sts_task(pd.read_parquet(data / "sts" / name / "test.parquet"), name=name) for name in STS]


def _choosing(data: Path) -> list[Any]:
    """For choosing between recipes, so that the test sets are not used for it."""
    files = {"stsb-dev": "stsb/dev", "sickr-trial": "sickr/trial"}
    return [sts_task(pd.read_parquet(data / "sts" / f"{file}.parquet"), name=name) for name, file in files.items()]


def _retrieval(data: Path) -> list[Any]:
    def table(name: str, part: str) -> pd.DataFrame:
        return pd.read_parquet(data / "retrieval" / name / f"{part}.parquet")

    return [retrieval_task(*(table(name, part) for part in ("corpus", "queries", "qrels")), name=name) for name in RETRIEVAL]


def _classification(data: Path) -> list[Any]:
    def table(name: str, part: str) -> pd.DataFrame:
        return pd.read_parquet(data / "classification" / name / f"{part}.parquet")

    return [classification_task(table(name, "train"), table(name, "test"), name=name) for name in CLASSIFICATION]


# Makes the tasks; and whether all sizes are scored.
SUITES: dict[str, tuple[Callable[[Path], list[Any]], bool]] = {
    "sts": (sts_tasks, True),
    "choosing": (_choosing, False),
    "retrieval": (_retrieval, False),
    "classification": (_classification, False),
}


def score(model: SentenceTransformer, suite: str, size: str, data: Path) -> pd.DataFrame:
    """Scores in percent: task, num_layers, dim, score.

    Args:
        model: What was trained.
        suite: Of `SUITES`.
        size: What the model was trained for; a size is what it is cut to already, and it is scored as it is.
        data: Where the data are.
    """
    tasks, everywhere = SUITES[suite]
    ladder = sizes_ladder(model)
    if size != "all sizes":
        grid = evaluate(model, tasks(data), sizes=[ladder[-1]])
    elif everywhere:
        grid = evaluate(model, tasks(data), dims=[rung.dim for rung in ladder])
    else:
        grid = evaluate(model, tasks(data), sizes=ladder)
    frame = grid.to_frame()
    frame = frame.loc[frame["is_main"], ["task", "num_layers", "dim", "score"]]
    if size != "all sizes":
        trained = Size.parse(size)
        frame = frame.assign(num_layers=trained.num_layers, dim=trained.dim)
    return frame.assign(score=(100 * frame["score"]).round(3)).reset_index(drop=True)
