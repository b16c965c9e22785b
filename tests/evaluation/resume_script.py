"""Script for `test_run_resume.py`: uninterrupted evaluations, and evaluations that are killed repeatedly.

Importing takes longer than evaluating, so one process imports everything and forks the others. Each
process reports embedded texts through a pipe at once, so that the reports of killed processes
survive.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size
from st_matryoshka2d.evaluation import embeddings, search
from st_matryoshka2d.evaluation.embedding_cache import Memo
from tests.support import families
from tests.support.labels import BinaryClassification, aggregate
from tests.support.launch import forked, freeze_garbage_collector, killed_by
from tests.support.results import files, read_whole, unfinished
from tests.support.search import FewResults
from tests.support.sts import LocalSTS, quiet

KINDS: dict[str, Callable[[], Any]] = {
    "STS": LocalSTS,
    "retrieval": FewResults,
    "classification": BinaryClassification,
    "aggregate": aggregate,
}
SIZES = [Size(1, 8), Size(2, 16), Size(4, 32)]
PRECISIONS = {"retrieval": ["float32", "int8"]}  # other kinds: only float32
CHUNK, CORPUS_CHUNK = 16, 7
KILLS = 4

# The first two words of a text identify its task and role.
PROMPTS = {
    "STS": "red red ",
    "Classification": "blue blue ",
    "Clustering": "new new ",
    "query": "old old ",
    "document": "tree tree ",
}
Moment = tuple[str, int]
Counts = Counter[str]


def main(root: Path) -> None:
    """Write `<kind>.json` and, for each kind, the grids of an uncached, an uninterrupted and a killed run."""
    torch.set_num_threads(1)
    freeze_garbage_collector()
    embeddings._CHUNK = CHUNK  # so that a small task is embedded in several chunks
    search._BETWEEN_SAVES = 0.0
    seed = int.from_bytes(os.urandom(4))
    generator = random.Random(seed)
    model = families.pipeline(families.CONFIGS["bert"](), root / "model", "mean", dense=None, normalize=False)
    model.prompts = dict(PROMPTS)
    for kind in KINDS:
        (root / kind).mkdir()
        run = partial(_run, model, root / kind, kind)
        run("plain", None)
        whole = run("whole", None)
        half = "batch", 1 + whole["batches"] // 2
        moments = [half, *(_moment(number, whole, generator) for number in range(1, KILLS)), None]
        runs = _killed_at(run, root / kind, "killed", moments, whole["read"])
        # Killed when the last cell is written and the embeddings are being deleted.
        runs += _killed_at(run, root / kind, "killed late", [("clear", whole["clears"]), None], whole["read"])
        said = {"seed": seed, "texts": whole["read"].total(), "runs": runs}
        (root / f"{kind}.json").write_text(json.dumps(said, indent=1))


def _moment(number: int, whole: dict[str, Any], generator: random.Random) -> Moment:
    """Choose a moment early in the remaining work, so that later runs can be killed too."""
    kind = ("batch", "bytes", "event")[number % 3]
    most = {"batch": whole["batches"] // 4, "bytes": 6000, "event": whole["events"] // 3}[kind]
    # The check of the cache writes 4096 bytes into a file that a kill does not leave behind.
    return kind, generator.randint(4097 if kind == "bytes" else 1, most)


def _killed_at(
    run: Callable[..., dict[str, Any]], folder: Path, name: str, moments: list[Moment | None], whole: Counts
) -> list[dict[str, Any]]:
    """Run repeatedly with one cache; return the texts that were embedded again, and the state of the cache."""
    runs: list[dict[str, Any]] = []
    held: Counts = Counter()
    for moment in moments:
        this = run(name, moment)
        told = {"name": name, "moment": moment, "signal": this["signal"]}
        told["again"] = sorted((this["read"] - (whole - held)).elements())
        told["lost"] = held.total() + this["read"].total()
        held = _held(folder / name, folder.name, whole)
        told["lost"] -= held.total()
        runs.append(told | {"held": held.total()} | _state(folder / name))
    return runs


def _run(model: SentenceTransformer, folder: Path, kind: str, name: str, moment: Moment | None) -> dict[str, Any]:
    """Run in a child process; return the texts it embedded and the signal that ended it."""
    reader, writer = os.pipe()
    child = forked(partial(_evaluate, model, folder, kind, name, moment, writer))
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = [json.loads(line) for line in lines]
    batches = [line for line in told if isinstance(line, list)]
    counts = next((line for line in told if isinstance(line, dict)), {})
    read = Counter(text for batch in batches for text in batch)
    return {"read": read, "batches": len(batches), "signal": killed_by(child), **counts}


def _evaluate(model: SentenceTransformer, folder: Path, kind: str, name: str, moment: Moment | None, writer: int) -> None:
    cache = folder / name
    happened = _watched(model, cache, moment or ("never", 0), writer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grid = quiet(
            model,
            KINDS[kind](),
            sizes=SIZES,
            precisions=PRECISIONS.get(kind, "float32"),
            cache=None if name == "plain" else cache,
            corpus_chunk_size=CORPUS_CHUNK,
        )
    os.write(writer, (json.dumps({"events": happened["event"], "clears": happened["clear"]}) + "\n").encode())
    (folder / f"{name}.pickle").write_bytes(pickle.dumps(grid))


def _watched(model: SentenceTransformer, cache: Path, moment: Moment, writer: int) -> Counts:
    """Report embedded texts, count cache operations, and kill this process at the given moment."""
    happened: Counts = Counter()
    tokenizer = model.tokenizer
    if moment[0] == "bytes":  # the system kills a process that writes more, in the middle of a file
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (moment[1], moment[1]))

    def count(what: str) -> None:
        happened[what] += 1
        if (what, happened[what]) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def read(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        texts = tokenizer.batch_decode(args[0], skip_special_tokens=True)
        if texts[0].startswith(tuple(PROMPTS.values())):  # not the texts that verify a cut
            os.write(writer, (json.dumps(texts) + "\n").encode())
            count("batch")

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event in ("os.remove", "os.rmdir") and "texts-" in str(args[0]):
            count("clear")
        if event.split(".")[0] in ("open", "os", "shutil") and any(str(cache) in str(arg) for arg in args):
            count("event")

    cast("Any", model[0]).model.get_input_embeddings().register_forward_pre_hook(read)
    sys.addaudithook(audit)
    return happened


def _state(folder: Path) -> dict[str, list[str]]:
    """List unreadable and unfinished files."""
    names: dict[str, list[str]] = {"broken": [], "unfinished": [], "waiting": []}
    for path in files(folder):
        name = str(path.relative_to(folder))
        if unfinished(path, folder):
            names["unfinished"].append(name)
            continue
        if path.suffix == ".safetensors":
            names["waiting"].append(name)
        try:
            read_whole(path)
        except Exception as error:
            names["broken"].append(f"{name}: {error}")
    return names


def _held(folder: Path, kind: str, whole: Counts) -> Counts:
    """Count the texts whose embeddings or results are on disk."""
    task = KINDS[kind]()
    held: Counts = Counter()
    for part in getattr(task, "tasks", [task]):
        own = next(folder.glob(f"st_matryoshka2d/*/*/{part.metadata.name}-*"), folder / "nothing")
        done = len(list(own.glob("cells/*.parquet"))) == len(SIZES) * len(PRECISIONS.get(kind, ["float32"]))
        for role in ("query", "document") if isinstance(part, FewResults) else (part.metadata.type,):
            prompt = PROMPTS[role]
            texts = {text.removeprefix(prompt): count for text, count in whole.items() if text.startswith(prompt)}
            if done:
                there = texts
            elif role == "document":
                there = _documents(own, part)
            else:
                there = dict.fromkeys(set(texts) - _missing(own, texts), 1)
            held.update({prompt + text: count for text, count in there.items()})
    return held


def _missing(own: Path, texts: dict[str, int]) -> set[str]:
    missing = set(texts)
    for memo in own.glob("texts-*"):
        missing &= set(Memo(memo).missing(texts))
    return missing


def _documents(own: Path, task: FewResults) -> Counts:
    """Count the documents of the chunks that a search has finished."""
    read: Counts = Counter()
    task.load_data()
    for split, data in task.dataset["default"].items():
        for path in own.glob(f"search-{split}-*"):
            with safe_open(path, framework="pt") as state:
                rows = int(state.metadata()["chunks"]) * CORPUS_CHUNK
            texts = [f"{row['title']} {row['text']}".strip() for row in data["corpus"]][:rows]
            for start in range(0, len(texts), CORPUS_CHUNK):
                read.update(set(texts[start : start + CORPUS_CHUNK]))
    return read


if __name__ == "__main__":
    main(Path(sys.argv[1]))
