"""Share the forward passes of an evaluation out to the processes of a launch; the first process does the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from st_matryoshka2d._hosts.sentence_transformers import shared_out, shares_out_texts
from st_matryoshka2d.errors import UsageError

MODEL = "weights or settings of the model"  # of the arguments that all must have alike
_LONGEST_WAIT = timedelta(days=1)  # for the scores, which the first process computes alone

Encode = Callable[..., NDArray[np.floating]]  # of a list of texts, and settings
T = TypeVar("T")


def in_all_processes(
    model: SentenceTransformer, encode: Encode, lead: Callable[[Encode, int], T], arguments: Mapping[str, Any]
) -> T:
    """Return `lead(encode, processes)` in every process that `torchrun` or `accelerate launch` started.

    Only the first process leads. What it encodes, all of them encode together, so their arguments
    must be the same.
    """
    if (count := _connected(model, arguments)) == 1:
        return lead(encode, 1)
    box: list[Any] = [None]
    with shared_out(lambda texts, **settings: torch.from_numpy(encode(texts, **settings))) as together:
        if together is not None:
            box = [lead(lambda texts, **settings: together(texts, **settings).numpy(), count)]
    dist.broadcast_object_list(box)
    result: T = box[0]
    return result


def _connected(model: SentenceTransformer, arguments: Mapping[str, Any]) -> int:
    """Connect the processes of the launch if necessary, compare their arguments, and count them."""
    if not dist.is_available() or shares_out_texts(model):
        return 1
    if not dist.is_initialized() and dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group(timeout=_LONGEST_WAIT)
    of_all: list[Any] = [arguments] * (dist.get_world_size() if dist.is_initialized() else 1)
    if len(of_all) > 1:
        dist.all_gather_object(of_all, arguments)
    if differing := [name for name in arguments if any(other[name] != arguments[name] for other in of_all)]:
        hint = " On CPUs, a Trainer only distributes its training with `use_cpu=True`." if MODEL in differing else ""
        raise UsageError(f"The processes share one evaluation, but differ in: {', '.join(differing)}.{hint}")
    return len(of_all)
