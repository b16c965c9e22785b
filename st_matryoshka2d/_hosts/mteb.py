"""What mteb does only as a part of something else."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import mteb
import numpy as np
import torch
from mteb.abstasks import AbsTask
from mteb.models import CompressionWrapper, ModelMeta
from mteb.types import OutputDType
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
