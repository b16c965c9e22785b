"""What mteb does only as a part of something else."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import mteb
import numpy as np
import torch
from mteb.abstasks import AbsTask
from mteb.abstasks.classification import AbsTaskClassification, ClassificationMetrics
from mteb.models import CompressionWrapper, ModelMeta
from mteb.types import OutputDType
from numpy.typing import ArrayLike
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, precision_score, recall_score
from torch import Tensor

from st_matryoshka2d._hosts.logs import filtered


def quiet_mteb() -> AbstractContextManager[None]:
    """Hide mteb's log, which it would repeat for every variant."""
    return filtered("mteb", lambda record: record.levelno >= logging.ERROR)


def compressed(embeddings: Tensor, precision: str) -> Tensor:
    """Reduce the precision of embeddings as mteb's wrapper of a model does; the result is float32 again."""
    encoder: Any = SimpleNamespace(encode=lambda *_, **__: embeddings, mteb_model_meta=ModelMeta.create_empty())
    with quiet_mteb():
        wrapper: Any = CompressionWrapper(encoder, OutputDType(precision))
        wrapper.min_embeds = 0  # below which it would warn, for each chunk
        reduced = wrapper.encode(None, task_metadata=None, hf_split="", hf_subset="")
    # mteb returns NaN for a constant coordinate.
    return torch.nan_to_num(torch.as_tensor(reduced).float())


def classification_scores(y_test: ArrayLike, y_pred: ArrayLike) -> ClassificationMetrics:
    """Score predictions as mteb does, without a warning of scikit-learn for each label that a weak size never predicts."""
    averages = {"": "macro", "_weighted": "weighted"}
    found: dict[str, Any] = {"accuracy": accuracy_score(y_test, y_pred)}
    for name, score in {"f1": f1_score, "precision": precision_score, "recall": recall_score}.items():
        for suffix, average in averages.items():
            # what scikit-learn sets it to
            found[name + suffix] = score(y_test, y_pred, average=average, zero_division=0)
    binary = len(np.unique(np.asarray(y_test))) == 2
    for suffix, average in averages.items():
        found["ap" + suffix] = average_precision_score(y_test, y_pred, average=average) if binary else None
    return cast("ClassificationMetrics", found)


class QuietClassification(AbsTaskClassification):
    """A classification task without these warnings."""

    def _calculate_scores(self, y_test: ArrayLike, y_pred: ArrayLike) -> ClassificationMetrics:
        return classification_scores(y_test, y_pred)


def task_of_mteb(name: str) -> AbsTask | None:
    """Return mteb's task of this name; creating it would reseed the random generators."""
    with random_states_kept(), suppress(KeyError):
        return mteb.get_task(name)
    return None


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore all random states: mteb seeds them whenever a task is created or scored."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    # Reading the random state of an unused GPU would allocate memory on it.
    used = torch.cuda.is_initialized()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if used else ()):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        if not used:
            # takes effect when a GPU is first used
            torch.cuda.manual_seed_all(torch.initial_seed())
