"""Script for `test_trainer.py`: killed and resumed pre-trainings, and one on two processes.

Importing takes longer than training, so one process imports everything and forks the others.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import distributed
from transformers import TrainerCallback

from st_matryoshka2d.pretraining import SMAEForPreTraining
from tests.support.launch import freeze_garbage_collector
from tests.support.smae import masked_lm, trainer

STEPS, SAVED, KILLED_IN = 6, 4, 5
SEEDS = {"seed": 0, "no seed": None}  # for the collator


class Kill(TrainerCallback):
    """Kill the process after the backward pass, before the optimizer step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == KILLED_IN - 1:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_and_resumed(root: Path) -> None:
    """Write `<run>.safetensors` of each run that was not killed, and `signals.json`."""
    freeze_garbage_collector()
    signals: dict[str, int] = {}
    for name, seed in SEEDS.items():
        for end in ("whole", "killed", "resumed"):
            signals[f"{name}, {end}"] = _forked(root, name, end, seed)
    (root / "signals.json").write_text(json.dumps(signals))


def on_two_processes(root: Path) -> None:
    """Write `rank0.pt` and `rank1.pt`."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    ends, logs = {}, {}
    # Batches of a stream differ in width, and the stream is repeated.
    for case, more in {1: {}, 2: {"gradient_accumulation_steps": 2}, "stream": {"stream": True, "max_steps": 12}}.items():
        # Only shallow sizes, so that part of the encoder has no gradient; each process starts from other weights.
        model = SMAEForPreTraining(masked_lm(dropout=None, seed=rank), ["1L-8d", "2L-32d"])
        training = trainer(
            model,
            root / "ranks",
            per_device_train_batch_size=2,
            logging_steps=2,
            ddp_backend="gloo",
            **({"max_steps": 4} | more),
        )
        training.train()
        ends[case], logs[case] = dict(model.state_dict()), training.state.log_history
    torch.save({"ends": ends, "logs": logs}, root / f"rank{rank}.pt")
    distributed.destroy_process_group()


def _forked(root: Path, name: str, end: str, seed: int | None) -> int:
    """Run in a child process; return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            log = os.open(root / f"{name}, {end}.log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            _train(root, name, end, seed)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if not os.WIFSIGNALED(ended) and os.waitstatus_to_exitcode(ended):
        raise RuntimeError(f"{name}, {end}: {(root / f'{name}, {end}.log').read_text()[-3000:]}")
    return os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else 0


def _train(root: Path, name: str, end: str, seed: int | None) -> None:
    """Train with BERT's dropout; a resumed training starts from other weights, which must not matter."""
    resumed = end == "resumed"
    model = SMAEForPreTraining(masked_lm(dropout=None, seed=int(resumed)))
    training = trainer(
        model,
        root / name / ("killed" if resumed else end),
        seed=seed,
        max_steps=STEPS,
        save_strategy="steps",
        save_steps=2,
        callbacks=[Kill()] if end == "killed" else [],
    )
    training.train(resume_from_checkpoint=resumed)
    save_file(model.state_dict(), root / f"{name}, {end}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"killed": killed_and_resumed, "processes": on_two_processes}[sys.argv[1]](Path(sys.argv[2]))
