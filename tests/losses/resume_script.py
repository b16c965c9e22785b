"""Script for `test_resume.py`: uninterrupted, killed and resumed trainings, each in a separate process.

Importing takes longer than training, so one process imports everything and forks the others.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import TrainerCallback

from st_matryoshka2d.losses import (
    EspressoLoss,
    LossStateCallback,
    MIPICLoss,
    RelationalDistillLoss,
    StarbucksLoss,
    TwoDMSELoss,
)
from st_matryoshka2d.losses.saved_state import own_parameters
from tests.support import families
from tests.support.launch import cache_card_templates, freeze_garbage_collector

STEPS, SAVED, KILLED_IN = 6, 4, 5
LOSSES: dict[str, Callable[[SentenceTransformer], Any]] = {
    "Starbucks": lambda model: StarbucksLoss(model, MultipleNegativesRankingLoss(model)),
    "2DMSE": lambda model: TwoDMSELoss(model, MultipleNegativesRankingLoss(model), dims=[4, 8, 16]),
    "Espresso": lambda model: EspressoLoss(model, MultipleNegativesRankingLoss(model)),
    "MIPIC": lambda model: MIPICLoss(model, MultipleNegativesRankingLoss(model)),
    "MIPIC, cached": lambda model: MIPICLoss(model, MultipleNegativesRankingLoss(model), mini_batch_size=2),
    "RelationalDistill": lambda model: RelationalDistillLoss(model),
    "a loss for each dataset": lambda model: {
        "old": MIPICLoss(model, MultipleNegativesRankingLoss(model)),
        "new": MIPICLoss(model, MultipleNegativesRankingLoss(model), alpha=0.6),
    },
    "MIPIC of other dims": lambda model: MIPICLoss(model, MultipleNegativesRankingLoss(model), dims=[5, 8, 16, 32]),
}
RESUMED = ["2DMSE", "MIPIC", "RelationalDistill", "a loss for each dataset"]
MORE_RESUMED = ["Starbucks", "Espresso", "MIPIC, cached"]


@dataclass(frozen=True)
class Run:
    """One training, and the files of its result and its messages."""

    name: str
    loss: str
    folder: str
    seed: int = 0
    killed: bool = False
    resume: str | bool | None = None
    resume_by_arguments: bool = False
    callback: bool = True
    learning_rate: float = 1e-3


class Kill(TrainerCallback):
    """Kill the process after the backward pass, before the optimizer step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == KILLED_IN - 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main(root: Path, part: str) -> None:
    """Write `<run>.safetensors` and `<run>.json` of each run that was not killed, and `signals.json`."""
    freeze_garbage_collector()
    cache_card_templates()
    _model(root).save_pretrained(str(root / "compiled"))  # once, before forking
    signals: dict[str, int] = {}

    def run(*args: Any, **kwargs: Any) -> None:
        training = Run(*args, **kwargs)
        signals[training.name] = _forked(training, root)

    for loss in RESUMED if part == "some" else MORE_RESUMED:
        run(f"{loss}, whole", loss, f"{loss}/whole")
        run(f"{loss}, killed", loss, f"{loss}/killed", killed=True)
        # The seed sets the loss's projections, which must come from the checkpoint.
        run(f"{loss}, resumed", loss, f"{loss}/killed", seed=1, resume=True)
    if part == "some":
        _spoilt(run, root)
    (root / "signals.json").write_text(json.dumps(signals))


def _spoilt(run: Callable[..., None], root: Path) -> None:
    """Resume without the callback, from another run's checkpoint, without its file, and with another loss's file."""
    run("unsaved, killed", "MIPIC", "unsaved", killed=True, callback=False)
    run("unsaved, resumed", "MIPIC", "unsaved", resume=True, callback=False)

    run("another run", "MIPIC", "another", seed=2, learning_rate=2e-3)
    checkpoint = str(root / "MIPIC" / "whole" / f"checkpoint-{SAVED}")
    run("elsewhere, not told", "MIPIC", "another", resume=checkpoint)
    run("elsewhere, told", "MIPIC", "another", seed=1, resume=checkpoint, resume_by_arguments=True)

    without = root / "without" / f"checkpoint-{SAVED}"
    shutil.copytree(checkpoint, without)
    (without / "loss.safetensors").unlink()
    run("no file", "MIPIC", "without", resume=True)
    shutil.copytree(checkpoint, root / "mistaken" / f"checkpoint-{SAVED}")
    run("another loss", "MIPIC of other dims", "mistaken", resume=True)


def _forked(training: Run, root: Path) -> int:
    """Run in a child process; return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            log = os.open(root / f"{training.name}.log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            _train(training, root)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if not os.WIFSIGNALED(ended) and os.waitstatus_to_exitcode(ended):
        raise RuntimeError(f"{training.name}: {(root / f'{training.name}.log').read_text()[-3000:]}")
    return os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else 0


def _train(training: Run, root: Path) -> None:
    torch.set_num_threads(1)
    folder = root / training.folder
    model = _model(root)
    torch.manual_seed(training.seed)
    loss = LOSSES[training.loss](model)
    if training.resume:  # weights must come from the checkpoint, except those of a teacher
        for parameter in model.parameters():
            parameter.data.zero_()
    checkpoint = training.resume if training.resume_by_arguments else None
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=5,
        learning_rate=training.learning_rate,
        save_steps=2,
        logging_steps=1,
        resume_from_checkpoint=checkpoint,
        multi_dataset_batch_sampler="round_robin",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    callbacks: list[TrainerCallback] = [LossStateCallback(loss)] if training.callback else []
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=_dataset(loss),
        loss=loss,
        callbacks=[*callbacks, Kill()] if training.killed else callbacks,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.train(resume_from_checkpoint=checkpoint or training.resume)
            error = ""
        except (FileNotFoundError, ValueError) as raised:
            error = f"{type(raised).__name__}: {raised}"
    said = [str(warning.message) for warning in caught if "LossStateCallback" in str(warning.message)]
    (root / f"{training.name}.json").write_text(json.dumps({"error": error, "said": said}))
    by_dataset = loss if isinstance(loss, dict) else {"": loss}
    ends = {f"model/{name}": value for name, value in model.state_dict().items()}
    for dataset, its_loss in by_dataset.items():
        ends |= {f"loss{dataset}/{name}": value.detach() for name, value in own_parameters(its_loss).items()}
    save_file(ends, root / f"{training.name}.safetensors")
    model.save_pretrained(str(folder / "final"))


def _model(root: Path) -> SentenceTransformer:
    """Build a model with BERT's dropout."""
    return families.pipeline(families.CONFIGS["bert"](), root / "start", pooling="mean", dense=None, normalize=False)


def _dataset(loss: Any) -> Dataset | DatasetDict:
    rows = families.TEXTS * 8

    def pairs(word: str) -> Dataset:
        return Dataset.from_dict({"anchor": rows, "positive": [f"{word} {row}" for row in rows]})

    return DatasetDict({word: pairs(word) for word in loss}) if isinstance(loss, dict) else pairs("old")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
