"""Processes that tests start and wait for, and what makes them and the tests themselves short."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import torch

from tests import ROOT


def finished(*command: str | Path, cwd: Path = ROOT, timeout: int = 300, **variables: str) -> str:
    """What a process printed; it has one thread and no GPU, and must end well."""
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    # The scripts fork, and a lock that another thread of the parent holds just then is never released in the child.
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


def finished_in_two(module: str, *arguments: str | Path) -> str:
    """The same of a script in two processes that know of each other."""
    return finished(sys.executable, "-m", "tests.support.two_processes", module, *arguments)


def little_garbage() -> None:
    """The Trainer collects garbage whenever it starts, and would look at all that was imported: most of a short run."""
    gc.collect()
    gc.freeze()


def seeds_for_what_is_there() -> None:
    """Seeds for accelerators that are not there are kept with the whole stack; mteb seeds with every task that it makes."""
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        if not kind.is_available():
            kind.manual_seed_all = lambda seed: None


def cards_compiled_once() -> None:
    """Each time a model is saved, the template of its card is compiled, which takes longer than the saving."""
    jinja2.Environment.compile = functools.lru_cache(jinja2.Environment.compile)  # type: ignore[method-assign, assignment]


def module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
