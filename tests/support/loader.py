"""A process that does jobs for a test: it reads them from standard input, a line each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import ROOT

_LONG = 0.5  # seconds; what polls a lock sleeps less


@dataclass
class Loader:
    """A process that calls `load`."""

    url: str
    home: Path
    variables: dict[str, str] = field(default_factory=dict)
    module: str = "tests.support.loader"

    def __post_init__(self) -> None:
        own = {"HF_ENDPOINT": self.url, "HF_HOME": str(self.home), "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}
        quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            cwd=ROOT,
            env={**os.environ, **own, **quiet, **self.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait(self) -> None:
        """Until it has started, which takes long."""
        self.do("wait")

    def load(self, name: str, **kwargs: Any) -> dict[str, Any]:
        """What `load` made of it: `embedding`, `layers` and `warnings`, or `error` and `words`."""
        answer: dict[str, Any] = self.do("load", name, **kwargs)
        return answer

    def do(self, job: str, *args: Any, **kwargs: Any) -> Any:
        """What the process answers to any job that it knows."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([job, args, kwargs]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def answer_jobs(**jobs: Callable[..., Any]) -> None:
    """Do what each line of standard input asks for, and answer it with a line: the result, or `error` and `words`."""
    answers, sys.stdout = sys.stdout, sys.stderr
    naps: list[float] = []
    time.sleep = _noting(naps)
    for line in sys.stdin:
        job, args, kwargs = json.loads(line)
        try:
            answer = jobs[job](*args, **kwargs)
        except Exception as error:
            answer = {"error": [kind.__name__ for kind in type(error).__mro__], "words": str(error)}
        if isinstance(answer, dict):
            answer["naps"] = [nap for nap in naps if nap >= _LONG]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        naps.clear()


def _noting(naps: list[float]) -> Callable[[float], None]:
    """Sleep, and remember it: who asks a Hub that is not there again and again sleeps in between."""
    sleep = time.sleep

    def nap(seconds: float) -> None:
        naps.append(seconds)
        sleep(seconds)

    return nap


def loaded(name: str, **kwargs: Any) -> dict[str, Any]:
    """What `load` gives, in what JSON can hold."""
    from st_matryoshka2d import load

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(name, device="cpu", **kwargs)
    return {
        "embedding": model.encode(["the cat sat on the mat", "a dog"]).tolist(),
        "layers": model.config.num_hidden_layers,
        "base_model": [model.model_card_data.base_model, model.model_card_data.base_model_revision],
        "called": [model[0].model.name_or_path, model.tokenizer.name_or_path],
        "warnings": [str(warning.message) for warning in caught if "whole weights" in str(warning.message)],
    }


if __name__ == "__main__":
    import st_matryoshka2d.loading  # noqa: F401  # what takes long comes before the first job is answered

    answer_jobs(wait=lambda: None, load=loaded)
