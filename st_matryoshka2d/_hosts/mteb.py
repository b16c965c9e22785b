"""What mteb does only as a part of something else."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import mteb
import numpy as np
import torch
from mteb.abstasks import AbsTask

from st_matryoshka2d._hosts.logs import filtered


def quiet_mteb() -> AbstractContextManager[None]:
    """Hide mteb's log, which it would repeat for every variant."""
    return filtered("mteb", lambda record: record.levelno >= logging.ERROR)


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
