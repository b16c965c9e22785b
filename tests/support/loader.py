"""Load from a local Hub, in this process or in a worker process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants, hf_api
from transformers.utils import hub as transformers_hub

from tests import ROOT

_LONG = 0.5  # seconds; lock polling sleeps less


@contextmanager
def another_hub(url: str, home: Path, *, offline: bool = False) -> Iterator[None]:
    """Patch the Hub client's settings, which it reads from the environment on import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        for api in (hf_api.api, transformers_hub.hf_api()):
            patch.setattr(api, "endpoint", url)
        for name, value in {
            "ENDPOINT": url,
            "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_HUB_OFFLINE": offline,
            "HF_HUB_DOWNLOAD_TIMEOUT": 1,
            "HF_HUB_DISABLE_TELEMETRY": True,
        }.items():
            patch.setattr(constants, name, value)
        close_session()
        try:
            yield
        finally:
            close_session()


@dataclass
class Loader:
    """Calls `load` with a separate Hub and cache."""

    url: str
    home: Path
    offline: bool = False

    def load(self, name: str, **kwargs: Any) -> dict[str, Any]:
        """Call `load`; return `embedding`, `layers` and `warnings`, or `error` and `words`."""
        with another_hub(self.url, self.home, offline=self.offline):
            return done(loaded, name, **kwargs)


class Worker:
    """A process that reads jobs from standard input, one per line."""

    def __init__(self, url: str, home: Path, module: str) -> None:
        own = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_TOKEN": "", "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}
        quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env={**os.environ, **own, **quiet},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def load(self, name: str, **kwargs: Any) -> dict[str, Any]:
        """Call `load` in the worker."""
        answer: dict[str, Any] = self.do("load", name, **kwargs)
        return answer

    def do(self, job: str, *args: Any, **kwargs: Any) -> Any:
        """Run any job in the worker; return its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([job, args, kwargs]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def answer_jobs(**jobs: Callable[..., Any]) -> None:
    """Run the job on each line of standard input; answer with one line: the result, or `error` and `words`."""
    answers, sys.stdout = sys.stdout, sys.stderr
    naps: list[float] = []
    time.sleep = _noting(naps)
    for line in sys.stdin:
        job, args, kwargs = json.loads(line)
        answer = done(jobs[job], *args, **kwargs)
        if isinstance(answer, dict):
            answer["naps"] = [nap for nap in naps if nap >= _LONG]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        naps.clear()


def done(job: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result, or `error` with the names of the error's classes and `words` with its message."""
    try:
        return job(*args, **kwargs)
    except Exception as error:
        return {"error": [kind.__name__ for kind in type(error).__mro__], "words": str(error)}


def _noting(naps: list[float]) -> Callable[[float], None]:
    """Wrap `time.sleep` to record its calls: retries of an unreachable Hub sleep in between."""
    sleep = time.sleep

    def nap(seconds: float) -> None:
        naps.append(seconds)
        sleep(seconds)

    return nap


def loaded(name: str, **kwargs: Any) -> dict[str, Any]:
    """Call `load`; return what the tests check, as JSON types."""
    from st_matryoshka2d import load

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(name, device="cpu", **kwargs)
    return {
        "embedding": model.encode(["the cat sat on the mat", "a dog"]).tolist(),
        "layers": getattr(model.config, "num_hidden_layers", 0),  # a token table has no config
        "base_model": [model.model_card_data.base_model, model.model_card_data.base_model_revision],
        "called": [model[0].model.name_or_path, model.tokenizer.name_or_path] if model.config else [],
        "warnings": [str(warning.message) for warning in caught if "whole weights" in str(warning.message)],
    }
