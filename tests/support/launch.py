"""Run test scripts in processes, and shorten their start and the tests."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import torch

from tests import ROOT


def finished(*command: str | Path, cwd: Path = ROOT, timeout: int = 300, **variables: str) -> str:
    """Run a command with one thread and no GPU; return its output. Fails if the command fails."""
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    # The scripts fork: a lock that another thread holds at that moment is never released in the
    # child.
    quiet["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **quiet, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def finished_with_hub(hub: Path, serve: Path, folder: Path, *command: str) -> str:
    """Run `python -m COMMAND` with a Hub that serves a folder; return its output."""
    with module_at(serve).serve(hub, writable=False) as url:
        own = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf"), "MTEB_CACHE": str(folder / "mteb")}
        return finished(sys.executable, "-m", *command, HF_HUB_OFFLINE="0", NO_PROXY="127.0.0.1", timeout=3600, **own)


def freeze_garbage_collector() -> None:
    """Freeze imported objects: the Trainer collects garbage at each start, which takes most of a short run."""
    gc.collect()
    gc.freeze()


def skip_missing_accelerators() -> None:
    """Skip seeding of absent accelerators: torch queues each seed with its stack trace, and mteb seeds for every task."""
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        if not kind.is_available():
            kind.manual_seed_all = lambda seed: None


def cache_card_templates() -> None:
    """Cache compiled model card templates: compiling one takes longer than saving a model."""
    jinja2.Environment.compile = functools.lru_cache(jinja2.Environment.compile)  # type: ignore[method-assign, assignment]


def module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forked(run: Callable[[], object]) -> int:
    """Run something in a child process, which then ends with 0, or with 1 after an error; return its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def killed_by(child: int) -> int:
    """Wait for a forked process; return the signal that killed it, or 0. Fails if the process failed, which it has told."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code <= 0, f"exit code {code}, see above"
    return -code
