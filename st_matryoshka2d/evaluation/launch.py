"""Share work between the processes of one launch."""

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

from st_matryoshka2d._hosts.sentence_transformers import shares_out_texts

logger = logging.getLogger(__name__)

_PATIENCE = 60.0  # seconds after which a process logs what it waits for


@dataclass(frozen=True)
class Processes:
    """The processes of an evaluation: this one alone, or all that `torchrun` or `accelerate launch` started."""

    rank: int = 0
    count: int = 1

    @classmethod
    def of_launch(cls, model: SentenceTransformer) -> Processes:
        """Return all processes of the launch, and connect them if necessary."""
        if not dist.is_available() or shares_out_texts(model):
            return cls()
        words = "Process %s waits for the others: every process of the launch must call `evaluate`."
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
        """Gather the values of all processes, in the order of their ranks. Every process must call this."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        try:
            dist.all_gather_object(values, value)
        except RuntimeError as error:
            raise OtherProcessError("This process stops because it has lost the others.") from error
        if failures := [str(one) for one in values if isinstance(one, OtherProcessError)]:
            raise OtherProcessError(f"This process stops because another has failed. {' '.join(failures)}")
        return values

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Report a failure to the other processes, which would wait forever; leave when all are done."""
        try:
            yield
        except OtherProcessError:
            raise
        except Exception as error:
            with suppress(RuntimeError):  # if the others are gone as well
                self.everyones(OtherProcessError(f"Process {self.rank}: {type(error).__name__}: {error}"))
            raise
        self.everyones(None)


class OtherProcessError(RuntimeError):
    """Another process failed or was lost, not this one. A failed process sends one to the others instead of a result."""
