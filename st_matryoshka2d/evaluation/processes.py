"""Work shared by the processes of one launch, where there are several."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import gather_object

__all__ = ["everyones", "rank", "world_size"]


def world_size() -> int:
    """How many processes `torchrun` or `accelerate` started; 1 without them."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or (dist.is_available() and dist.is_initialized()):
        return int(PartialState().num_processes)  # which joins the processes where nobody has done so yet
    return 1


def rank() -> int:
    """Which of them this is, from 0."""
    return int(PartialState().process_index) if world_size() > 1 else 0


def everyones(value: Any) -> list[Any]:
    """What every process passed here, in the order of their ranks. All of them have to come by.

    Args:
        value: Anything that can be pickled.
    """
    return list(gather_object([value])) if world_size() > 1 else [value]
