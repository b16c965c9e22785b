"""Share the forward passes of an evaluation out to the processes of a launch; the first process does the rest."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from threading import Timer
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from st_matryoshka2d._hosts.sentence_transformers import shares_out_texts
from st_matryoshka2d.errors import UsageError

logger = logging.getLogger(__name__)

_PATIENCE = 60.0  # seconds after which a process logs what it waits for
MODEL = "weights or settings of the model"  # of the arguments that all must have alike
_LONGEST_WAIT = timedelta(days=1)  # for the scores, which the first process computes alone

Encode = Callable[..., NDArray[np.floating]]  # of a list of texts, and settings
T = TypeVar("T")


class OtherProcessError(RuntimeError):
    """Another process failed or was lost, not this one."""

    def __str__(self) -> str:
        return f"This process stops because {self.args[0]}"


def in_all_processes(
    model: SentenceTransformer, encode: Encode, lead: Callable[[Encode, int], T], arguments: Mapping[str, Any]
) -> T:
    """Return `lead(encode, processes)` in every process that `torchrun` or `accelerate launch` started.

    Only the first process leads. What it encodes, all of them encode together, so their arguments
    must be the same.
    """
    if (count := _connected(model, arguments)) == 1:
        return lead(encode, 1)
    group = dist.new_group(backend="gloo", timeout=_LONGEST_WAIT)
    try:
        launch = _Launch(encode, count, group)
        return launch.lead(lead) if dist.get_rank() == 0 else launch.follow()
    finally:
        dist.destroy_process_group(group)


def _connected(model: SentenceTransformer, arguments: Mapping[str, Any]) -> int:
    """Connect the processes of the launch if necessary, compare their arguments, and count them."""
    if not dist.is_available() or shares_out_texts(model):
        return 1
    words = "Process %s waits for the others: every process of the launch must call `evaluate`."
    timer = Timer(_PATIENCE, logger.warning, [words, os.environ.get("RANK", "?")])
    timer.daemon = True
    timer.start()
    try:
        if not dist.is_initialized() and dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1:
            dist.init_process_group()
        of_all: list[Any] = [arguments] * (dist.get_world_size() if dist.is_initialized() else 1)
        if len(of_all) > 1:
            dist.all_gather_object(of_all, arguments)
    finally:
        timer.cancel()
    if differing := [name for name in arguments if any(other[name] != arguments[name] for other in of_all)]:
        hint = " On CPUs, a Trainer only distributes its training with `use_cpu=True`." if MODEL in differing else ""
        raise UsageError(f"The processes share one evaluation, but differ in: {', '.join(differing)}.{hint}")
    return len(of_all)


class _Launch:
    """The leading process sends the others texts, and at last the result or the reason why there is none."""

    def __init__(self, encode: Encode, count: int, group: Any) -> None:
        self._encode, self._count, self._group = encode, count, group
        self._threads = torch.get_num_threads()

    def lead(self, lead: Callable[[Encode, int], T]) -> T:
        """Run the evaluation."""
        try:
            result = lead(self._encode_together, self._count)
        except Exception as error:
            of_other = isinstance(error, OtherProcessError)
            with suppress(OtherProcessError):  # if the others are gone as well
                self._broadcast("failure", error.args[0] if of_other else f"another has failed. Process 0: {_words(error)}")
            raise
        finally:
            torch.set_num_threads(self._threads)
        self._broadcast("result", result)
        return result

    def follow(self) -> Any:
        """Encode what the leading process asks for; return its result."""
        failure: Exception | None = None
        while True:
            kind, content = self._broadcast()
            if kind == "result":
                return content
            if kind == "failure":
                raise failure or OtherProcessError(content)
            _, failure = self._encode_share(*content)

    def _encode_together(self, texts: list[str], **settings: Any) -> NDArray[np.floating]:
        self._broadcast("texts", (texts, settings))
        torch.set_num_threads(self._threads)
        parts, failure = self._encode_share(texts, settings)
        # The others of this machine are idle while this process computes scores.
        torch.set_num_threads(self._threads * int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        if failure:
            raise failure
        if failures := [f"Process {rank}: {part}" for rank, part in enumerate(parts) if isinstance(part, str)]:
            raise OtherProcessError(f"another has failed. {' '.join(failures)}")
        together = np.empty((len(texts), parts[0].shape[1]), parts[0].dtype)
        for rank, part in enumerate(parts[: len(texts)]):
            together[rank :: self._count] = part
        return together

    def _encode_share(self, texts: list[str], settings: dict[str, Any]) -> tuple[list[Any], Exception | None]:
        """Encode this process's texts; return all processes' embeddings, for the first, and the error in this one."""
        part: Any = None
        failure = None
        try:
            if share := texts[dist.get_rank() :: self._count]:
                part = self._encode(share, **settings)
        except Exception as error:
            part, failure = _words(error), error
        parts: list[Any] = [None] * self._count
        self._exchange(dist.gather_object, part, parts if dist.get_rank() == 0 else None)
        return parts, failure

    def _broadcast(self, *message: Any) -> Any:
        """Send a message, in the first process, or return the one that it sends."""
        box = [message]
        self._exchange(dist.broadcast_object_list, box)
        return box[0]

    def _exchange(self, collective: Callable[..., object], *objects: Any) -> None:
        try:
            collective(*objects, group=self._group)
        except RuntimeError as error:
            raise OtherProcessError("it has lost the others.") from error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
