"""Script for `test_run_distributed.py`: evaluations that two processes share, fail at, and resume."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from mteb.abstasks import AbsTask
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import GridEvaluator, GridResult, Size, retrieval_task, sts_task
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.evaluation import search
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
STOPPED: Case = {"tasks": lambda: [LocalSTS(), collection()], "precisions": ["float32", "int8"], "corpus_chunk_size": CHUNK}


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


def stop_at(model: SentenceTransformer, embedded: Embedded, documents: int, folder: Path) -> None:
    """Stop an evaluation, in all its processes, when this one has embedded so many documents; it saves at once."""

    def stop(*args: Any) -> None:
        if embedded.documents > documents:
            raise InterruptedError("stopped")

    embedded.forget()
    usual, search._BETWEEN_SAVES = search._BETWEEN_SAVES, 0.0
    hook = model[0].model.get_input_embeddings().register_forward_pre_hook(stop)  # type: ignore[union-attr, operator]
    assert "stopped" in error_of(lambda: grid(model, STOPPED, cache=folder))
    hook.remove()
    search._BETWEEN_SAVES = usual


def evaluated(folder: Path) -> dict[str, Any]:
    """Evaluate without an existing process group, and then with it."""
    warnings.simplefilter("ignore")
    os.environ["TORCHELASTIC_RUN_ID"] = "as of torchrun"
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    embedded = Embedded(model)
    result: dict[str, Any] = {"grids": {}, "counts": {}}
    for name, case in CASES.items():
        embedded.forget()
        result["grids"][name], result["counts"][name] = grid(model, case), embedded.texts
    sizes = SIZES[:2] if RANK == 1 else SIZES
    result["errors"] = {
        "first fails": error_of(lambda: grid(model, {"tasks": FailsInTheFirst})),
        "second fails": error_of(lambda: grid(_failing(model), CASES["sts"])),
        "sizes": error_of(lambda: grid(model, CASES["sts"], sizes=sizes)),
        "data of the tasks": error_of(lambda: grid(model, {"tasks": _own_pairs})),
        "weights or settings of the model": error_of(lambda: grid(_changed(model), CASES["sts"])),
    }
    result["after errors"] = grid(model, CASES["sts"])
    stop_at(model, embedded, 3 * (CHUNK // 2) if RANK else DOCUMENTS, folder / ("unused" if RANK else "of two"))
    cache = folder / ("unused" if RANK else "of one")
    result["resumed"] = []
    for _ in range(2):
        embedded.forget()
        result["resumed"].append((grid(model, STOPPED, cache=cache), embedded.documents, embedded.texts))
    result["in a trainer"] = _in_a_trainer(model, embedded, folder)
    return result


def _failing(model: SentenceTransformer) -> SentenceTransformer:
    """Fail in the second process."""
    model = copy.deepcopy(model)

    def fail(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if RANK == 1 and len(args[0]) > 2:  # not the texts that verify a cut
            raise OSError("no such memory here")

    model[0].model.get_input_embeddings().register_forward_pre_hook(fail)  # type: ignore[union-attr, operator]
    return model


def _changed(model: SentenceTransformer) -> SentenceTransformer:
    """Change a weight in the second process, as after separate training."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        next(model.parameters())[0] += RANK
    return model


def _own_pairs() -> AbsTask:
    return sts_task({"sentence1": ["a", "b"], "sentence2": ["c", f"d{RANK}"], "score": [1, 2]})


def error_of(call: Callable[[], object]) -> str:
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
