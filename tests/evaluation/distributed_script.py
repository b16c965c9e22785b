"""Script for `test_run_distributed.py`: evaluations that two processes share, fail at, and resume."""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from datasets import Dataset
from mteb.abstasks import AbsTask
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import distributed

from st_matryoshka2d import GridEvaluator, GridResult, Size, retrieval_task, sts_task
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.evaluation import processes, search
from tests.support import labels
from tests.support.sts import LocalSTS, quiet, read_along
from tests.support.task_types import Writer

RANK = int(os.environ.get("RANK", "0"))
SIZES = [Size(4, 32), Size(1, 8), Size(3, 21)]
DOCUMENTS, QUERIES, CHUNK = 89, 12, 7
PRECISIONS = ["float32", "int8", "binary"]
Case = dict[str, Any]


def collection(documents: int = DOCUMENTS) -> Any:
    """Return distinct texts, so that the embedded ones can be counted."""
    writer = Writer(0)
    corpus = {f"d{i}": writer.text(i % 4) for i in range(documents)}
    queries = {f"q{i}": writer.near(corpus[f"d{7 * i % documents}"]) for i in range(QUERIES)}
    return retrieval_task(corpus, queries, {f"q{i}": {f"d{7 * i % documents}": 1, "d0": 1} for i in range(QUERIES)})


class FailsInTheFirst(LocalSTS):
    def load_data(self, *args: Any, **kwargs: Any) -> None:
        super().load_data(*args, **kwargs)
        if RANK == 0:
            raise OSError("no such data here")


CASES: dict[str, Case] = {
    "sts": {"tasks": LocalSTS, "precisions": PRECISIONS},
    "many chunks": {"tasks": collection, "precisions": PRECISIONS, "corpus_chunk_size": CHUNK},
    "one chunk": {"tasks": collection, "precisions": PRECISIONS},
    "one document": {"tasks": lambda: collection(1), "precisions": PRECISIONS},
    "classification": {"tasks": labels.BinaryClassification},
    "aggregate": {"tasks": labels.aggregate},
    "one view": {"tasks": LocalSTS, "sizes": SIZES[:1]},
}
STOPPED: Case = {
    "tasks": lambda: [LocalSTS(), collection(), labels.BinaryClassification()],
    "precisions": ["float32", "int8"],
    "corpus_chunk_size": CHUNK,
}


def grid(model: SentenceTransformer, case: Case, **more: Any) -> GridResult:
    wanted = {"sizes": SIZES, "batch_size": 4, **case, **more}
    return quiet(model, wanted.pop("tasks")(), **wanted)


class Embedded:
    """Counts the texts that a model embeds, without those that verify a cut."""

    def __init__(self, model: SentenceTransformer) -> None:
        self._seen = read_along(model)
        EveryLayer.of(model, [size.num_layers for size in SIZES])
        self._proofs = set(self._seen)
        self._documents = set(collection().dataset["default"]["test"]["corpus"]["text"])
        self.forget()

    def forget(self) -> None:
        self._seen.clear()

    @property
    def texts(self) -> int:
        return sum(count for text, count in self._seen.items() if text not in self._proofs)

    @property
    def documents(self) -> int:
        return sum(count for text, count in self._seen.items() if text in self._documents)


def main(part: str, folder: Path) -> None:
    """Write the results of each process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    search._BETWEEN_SAVES = 0.0
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    torch.save(PARTS[part](model, Embedded(model), folder), folder / f"{part}-{RANK}.pt")


def share(model: SentenceTransformer, embedded: Embedded, folder: Path) -> dict[str, Any]:
    """Evaluate without an existing process group; the second process starts late."""
    begun = folder / "begun"
    if RANK == 0:
        processes._PATIENCE = 0.5
        begun.touch()
    while not begun.exists():
        time.sleep(0.1)
    time.sleep(2 * RANK)
    found: dict[str, Any] = {"grids": {}, "counts": {}}
    for name, case in CASES.items():
        embedded.forget()
        found["grids"][name], found["counts"][name] = grid(model, case), embedded.texts
    sizes = SIZES[:2] if RANK == 1 else SIZES
    found["errors"] = {
        "first fails": _error(lambda: grid(model, {"tasks": FailsInTheFirst})),
        "second fails": _error(lambda: grid(_failing(model), CASES["sts"])),
        "differs": _error(lambda: grid(model, CASES["sts"], sizes=sizes)),
        "other data": _error(lambda: grid(model, {"tasks": _own_pairs})),
        "other weights": _error(lambda: grid(_changed(model), CASES["sts"])),
    }
    found["after errors"] = grid(model, CASES["sts"])
    found["in a trainer"] = _in_a_trainer(model, embedded, folder)
    return found


def _changed(model: SentenceTransformer) -> SentenceTransformer:
    """Change a weight in the second process, as after separate training."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        next(model.parameters())[0] += RANK
    return model


def _failing(model: SentenceTransformer) -> SentenceTransformer:
    """Fail in the second process."""
    model = copy.deepcopy(model)

    def fail(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if RANK == 1 and len(args[0]) > 2:  # not the texts that verify a cut
            raise OSError("no such memory here")

    model[0].model.get_input_embeddings().register_forward_pre_hook(fail)  # type: ignore[union-attr, operator]
    return model


def _own_pairs() -> AbsTask:
    return sts_task({"sentence1": ["a", "b"], "sentence2": ["c", f"d{RANK}"], "score": [1, 2]})


def _error(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def _in_a_trainer(model: SentenceTransformer, embedded: Embedded, folder: Path) -> dict[str, Any]:
    """Evaluate in a Trainer, where the first process evaluates and sentence-transformers makes the other wait."""
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "run"),
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        learning_rate=1e-2,
        save_strategy="no",
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        report_to="none",
    )
    rows = [f"{word} {other}" for word in ("cat", "dog", "bird") for other in ("sat", "ran", "flew", "house")]
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"anchor": rows * 2, "positive": [f"old {row}" for row in rows] * 2}),
        loss=MultipleNegativesRankingLoss(model),
        evaluator=GridEvaluator(collection(), SIZES, write_csv=False),
    )
    before = grid(model, CASES["one chunk"]).score(SIZES[1])
    trainer.train()
    embedded.forget()
    score, texts = trainer.evaluate()["eval_MyRetrieval_01L_0008d"], embedded.texts
    return {"before": before, "score": score, "texts": texts, "after": grid(model, CASES["one chunk"]).score(SIZES[1])}


def stop(model: SentenceTransformer, embedded: Embedded, folder: Path) -> None:
    """Kill both processes and the launcher when the second process starts its share of the fourth chunk."""
    Accelerator(cpu=True)
    everyone: list[Any] = [None, None]
    distributed.all_gather_object(everyone, [os.getppid(), os.getpid()])

    def kill(*args: Any) -> None:
        if RANK == 1 and embedded.documents > 3 * (CHUNK // 2):
            for process in [*everyone[0], *everyone[1]]:
                os.kill(process, signal.SIGKILL)

    model[0].model.get_input_embeddings().register_forward_pre_hook(kill)  # type: ignore[union-attr, operator]
    grid(model, STOPPED, cache=folder / "stopped")


def resume(model: SentenceTransformer, embedded: Embedded, folder: Path) -> dict[str, Any]:
    """Resume within an existing process group."""
    distributed.init_process_group("gloo")
    found: dict[str, Any] = {"grids": [], "counts": []}
    for _ in range(2):
        embedded.forget()
        found["grids"].append(grid(model, STOPPED, cache=folder / ("unused" if RANK else "resumed")))
        found["counts"].append((embedded.documents, embedded.texts))
    distributed.destroy_process_group()
    return found


PARTS: dict[str, Callable[[SentenceTransformer, Embedded, Path], Any]] = {
    part.__name__: part for part in (share, stop, resume)
}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
