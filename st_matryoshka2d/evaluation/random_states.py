"""mteb seeds every generator when a task is made or scored; training that goes on afterwards must not notice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["random_states_kept"]


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Give the generators of Python, NumPy and torch back as they were.

    Example:
        >>> _ = torch.manual_seed(7)
        >>> with random_states_kept():
        ...     _ = torch.manual_seed(42)
        >>> torch.initial_seed()
        7
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    # To ask a GPU that is not in use for its state would occupy memory of every one.
    used = torch.cuda.is_initialized()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if used else ()):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        if not used:
            torch.cuda.manual_seed_all(torch.initial_seed())  # it is seeded when it is first used
