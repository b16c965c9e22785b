"""Work shared by the processes of one launch, where there are several."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Timer
from typing import Any

import torch.distributed as dist
from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

_PATIENCE = 60.0  # seconds after which a process says what it waits for


@dataclass(frozen=True)
class Processes:
    """Who works on an evaluation: this process by itself, or all that `torchrun` or `accelerate launch` started."""

    rank: int = 0
    count: int = 1

    @classmethod
    def that_share(cls, model: SentenceTransformer) -> Processes:
        """All processes of the launch, which meet here if they have not done so yet."""
        if not dist.is_available() or getattr(model, "_distributed_inference", None) is not None:
            return cls()
        words = "Process %s waits for the others: where several were started, each of them has to call `evaluate`."
        timer = Timer(_PATIENCE, logger.warning, [words, os.environ.get("RANK", "?")])
        timer.daemon = True
        timer.start()
        try:
            if not dist.is_initialized() and dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1:
                dist.init_process_group()
            processes = cls(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else cls()
            processes.everyones(None)
        finally:
            timer.cancel()
        return processes

    def everyones(self, value: Any) -> list[Any]:
        """What every process passed here, in the order of their ranks. All of them have to come by."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        try:
            dist.all_gather_object(values, value)
        except RuntimeError as error:
            raise OtherProcessError("This process has lost the others, which is why it stops.") from error
        if failures := [one for one in values if isinstance(one, _Failure)]:
            raise OtherProcessError(f"This process stops because another has failed. {' '.join(failures)}")
        return values

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Where one process fails, let the others know, who would wait for it; none leaves before all are done."""
        try:
            yield
        except OtherProcessError:
            raise
        except Exception as error:
            with suppress(RuntimeError):  # of the others being gone as well
                self.everyones(_Failure(f"Process {self.rank}: {type(error).__name__}: {error}"))
            raise
        self.everyones(None)


class OtherProcessError(RuntimeError):
    """Nothing went wrong in this process itself."""


class _Failure(str):
    """What a process passes to the others instead of a result."""
