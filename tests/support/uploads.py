"""A Hub with uploads and private repositories, and the jobs of a process that trains, pushes and loads models."""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.loader import answer_jobs, loaded

# Access tokens. Without one, private repositories do not exist; with an unknown one, uploads are
# refused.
OWNER, READER = "hf_owner", "hf_reader"


@contextmanager
def shipping(shared: Path, root: Path) -> Iterator[Any]:
    """Serve a folder; `sent` counts the bytes of each weights file, `stop()` shuts the Hub down."""
    spec = importlib.util.spec_from_file_location("serve", shared / "hub" / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    sent: Counter[str] = Counter()

    class Handler(serve.Handler):  # type: ignore[misc, name-defined]
        def _route(self, store: Any, path: str) -> Any:
            """Respond like the real Hub: 401 without a token, 404 without read access."""
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if re.search(r"/me/private(/|\.git|$)", unquote(path)) and token != OWNER:
                raise serve.Problem(404 if token else 401, "Repository not found", "RepoNotFound")
            return super()._route(store, path)

        def _start(self, status: int, headers: Any) -> None:
            path = unquote(urlsplit(self.path).path)
            if self.command == "GET" and path.endswith(".safetensors"):
                repository, _, file = path.strip("/").partition("/resolve/")
                sent[f"{repository}/{file.partition('/')[2]}"] += int(headers["Content-Length"])
            super()._start(status, headers)

    hub = serve.Hub(root, writable=True)
    hub.RequestHandlerClass = Handler
    hub.sent = sent
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()

    def stop() -> None:
        if thread.is_alive():
            hub.shutdown()
            thread.join()
            hub.server_close()

    hub.stop = stop
    try:
        yield hub
    finally:
        stop()


def trained(folder: str, name: str, token: str, *, adapter: bool = False) -> dict[str, Any]:
    """Train a tiny model or an adapter of it for a step, push it, and return embeddings of it and of cuts."""
    from datasets import Dataset
    from peft import LoraConfig
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from st_matryoshka2d import truncate
    from st_matryoshka2d.losses import StarbucksLoss
    from tests.support import families

    model = families.pipeline(
        families.CONFIGS["bert"](), Path(folder) / "weights", pooling="mean", dense=None, normalize=False
    )
    if adapter:
        model.add_adapter(LoraConfig(target_modules=["query", "dense"]))
    pairs = Dataset.from_dict({"anchor": ["the cat sat", "a dog ran"], "positive": ["a cat", "the dog"]})
    arguments = SentenceTransformerTrainingArguments(
        folder, max_steps=1, learning_rate=0.01, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True
    )
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=pairs, loss=StarbucksLoss(model, MultipleNegativesRankingLoss(model))
    ).train()
    model.eval()
    model.push_to_hub(name, token=token)
    truncate(model, num_layers=2, dim=8).push_to_hub(f"{name}-cut", token=token)
    return {
        "full": _embeddings(model),
        "2L-8d": _embeddings(truncate(model, num_layers=2, dim=8)),
        "1L-4d": _embeddings(truncate(model, num_layers=1, dim=4)),
    }


def passed_on(name: str, to: str, token: str, **kwargs: Any) -> dict[str, Any]:
    """Load a cut and push it."""
    from st_matryoshka2d import load

    small = load(name, device="cpu", token=token, **kwargs)
    small.push_to_hub(to, token=token)
    return {"embedding": _embeddings(small)}


def shell(*words: str) -> dict[str, Any]:
    """Run the command line; return its exit code, last line of standard error, and exception."""
    from typer.testing import CliRunner

    from st_matryoshka2d.cli.app import app

    result = CliRunner().invoke(app, words)
    return {"code": result.exit_code, "told": result.stderr.splitlines()[-1:], "bug": repr(result.exception)}


def plainly_loaded(name: str, **kwargs: Any) -> dict[str, Any]:
    """Load a model in a process without this package."""
    from sentence_transformers import SentenceTransformer

    assert sys.modules["st_matryoshka2d"] is None  # makes importing it fail
    return {"embedding": _embeddings(SentenceTransformer(name, device="cpu", **kwargs))}


def _embeddings(model: Any) -> Any:
    return model.encode(["the cat sat on the mat", "a dog"]).tolist()


if __name__ == "__main__":
    answer_jobs(wait=lambda: None, load=loaded, train=trained, passed_on=passed_on, shell=shell)
