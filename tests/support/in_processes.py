"""Call a function of a script in distributed processes, and return what each returns.

Importing takes longer than the tests, so one process imports the script and forks the others.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from tests.support.launch import cache_card_templates, finished, forked, freeze_garbage_collector


def in_processes(number: int, call: Callable[[Path], object], folder: Path) -> list[Any]:
    """Call a function of a module with a folder, in each process with one thread; return the results by rank."""
    finished(sys.executable, "-m", "tests.support.in_processes", str(number), call.__module__, call.__name__, folder)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(number)]


def main(number: int, module: str, name: str, folder: Path) -> int:
    """Return 0 or the exit status of a failed process; the others, which may wait for it, are killed."""
    importlib.import_module(module)
    freeze_garbage_collector()
    cache_card_templates()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = {_forked(rank, number, port, module, name, folder) for rank in range(number)}
    while children:
        child, ended = os.wait()
        children.remove(child)
        if status := os.waitstatus_to_exitcode(ended):
            for other in children:
                os.kill(other, signal.SIGKILL)
            return status
    return 0


def _forked(rank: int, number: int, port: int, module: str, name: str, folder: Path) -> int:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "MASTER_PORT": port}

    def run() -> None:
        os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")
        torch.set_num_threads(1)
        del sys.modules[module]  # so that it reads these variables
        torch.save(getattr(importlib.import_module(module), name)(folder), folder / f"rank{rank}.pt")
        if distributed.is_initialized():
            distributed.destroy_process_group()

    return forked(run)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])))
