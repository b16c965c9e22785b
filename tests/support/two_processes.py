"""`python -m tests.support.two_processes MODULE ARGUMENT ...`: run a script in two distributed processes.

Importing takes longer than the tests, so one process imports the script and forks the two.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys

from tests.support.launch import cache_card_templates, forked, freeze_garbage_collector


def main(module: str) -> int:
    """Return 0 or the exit status of a failed process; the other process, which may wait for it, is killed."""
    importlib.import_module(module)
    freeze_garbage_collector()
    cache_card_templates()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = {_forked(module, rank, port) for rank in range(2)}
    while children:
        child, ended = os.wait()
        children.remove(child)
        if status := os.waitstatus_to_exitcode(ended):
            for other in children:
                os.kill(other, signal.SIGKILL)
            return status
    return 0


def _forked(module: str, rank: int, port: int) -> int:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}

    def run() -> None:
        os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")
        del sys.modules[module]  # avoids a warning of runpy
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return forked(run)


if __name__ == "__main__":
    del sys.argv[0]
    sys.exit(main(sys.argv[0]))
