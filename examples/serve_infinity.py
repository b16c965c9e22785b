"""Serve a plain and an aligned cut with infinity, request embeddings over HTTP, and compare them with `encode`.

    make example-serve_infinity

infinity-emb needs older libraries than this package, so the make target installs it in a separate
environment. It has the OpenAI API. Writes the cuts and the server's log to `runs/infinity`, and
stops the server at the end.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from _demo import serving as demo_serving

from st_matryoshka2d import truncate

OUT, INFINITY = Path("runs/infinity"), Path(__file__).resolve().parents[1] / ".venv-infinity/bin/infinity_emb"
OPTIONS = "v2 --engine torch --device cpu --dtype float32 --no-bettertransformer --host 127.0.0.1 --port"


@contextmanager
def served(names: list[str]) -> Iterator[str]:
    """Serve the cuts in these folders of `OUT`; yield the address once the server responds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    models = [option for name in names for option in ("--model-id", str(OUT / name), "--served-model-name", name)]
    quiet = os.environ | {"DO_NOT_TRACK": "1"}  # no usage statistics
    with (OUT / "server.log").open("w") as log:
        server = subprocess.Popen([INFINITY, *OPTIONS.split(), port, *models], stdout=log, stderr=log, env=quiet)
        try:
            while not answers(f"http://127.0.0.1:{port}/health"):
                if server.poll() is not None:
                    raise SystemExit(f"infinity did not start: see {log.name}")
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/embeddings"
        finally:
            server.terminate()
            server.wait()


def answers(address: str) -> bool:
    """Return whether the server responds."""
    try:
        return bool(urlopen(address).read())
    except OSError:
        return False


def ask(address: str, **question: Any) -> np.ndarray:
    """Request embeddings; return an array of shape (texts, dim)."""
    with urlopen(Request(address, json.dumps(question).encode(), {"Content-Type": "application/json"})) as answer:
        return np.array([row["embedding"] for row in json.load(answer)["data"]])


model, aligned, texts = demo_serving.start()
cuts, rows = {"plain": truncate(model, "3L-64d"), "aligned": truncate(aligned, "3L-64d")}, []
for name, cut in cuts.items():
    demo_serving.save(cut, OUT / name)
with served([*cuts]) as address:
    for name, sent in [(name, sent) for name in cuts for sent in ({}, {"dimensions": 64}, {"dimensions": 32})]:
        found = ask(address, model=name, input=texts[:100], **sent)
        wanted = cuts[name].encode(texts[:100], truncate_dim=found.shape[1])
        length, gap = np.linalg.norm(found, axis=1).mean(), np.abs(found - wanted).max()
        rows.append([name, f"{sent.get('dimensions', 'none')}", f"{found.shape[1]}", f"{length:.2f}", f"{gap:.0e}"])
demo_serving.table(["cut", "`dimensions` sent", "dims returned", "length of a vector", "largest difference"], rows)
