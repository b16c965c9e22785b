"""Script for `test_trainer.py`: killed and resumed pre-trainings, and one on two processes."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from st_matryoshka2d.pretraining import SMAEForPreTraining
from tests.support.killed import STEPS, Kill, run_each
from tests.support.smae import masked_lm, trainer

SEEDS = {"seed": 0, "no seed": None}  # for the collator


def killed_and_resumed(root: Path) -> None:
    """Write the weights of uninterrupted and of resumed runs."""
    run_each(
        root,
        {
            f"{name}, {end}": partial(trained, root / name, end, seed)
            for name, seed in SEEDS.items()
            for end in ("whole", "killed", "resumed")
        },
    )


def trained(folder: Path, end: str, seed: int | None) -> dict[str, Tensor]:
    """Train with BERT's dropout; a resumed training starts from other weights, which must not matter."""
    resumed = end == "resumed"
    model = SMAEForPreTraining(masked_lm(dropout=None, seed=int(resumed)))
    trainer(
        model,
        folder / ("killed" if resumed else end),
        seed=seed,
        max_steps=STEPS,
        save_strategy="steps",
        save_steps=2,
        callbacks=[Kill()] if end == "killed" else [],
    ).train(resume_from_checkpoint=resumed)
    return dict(model.state_dict())


def spread(root: Path) -> dict[str, Any]:
    """Return the weights and the log of each training that processes share."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    ends, logs = {}, {}
    # Batches of a stream differ in width, and the stream is repeated.
    cases = {1: {}, 2: {"gradient_accumulation_steps": 2}, "stream": {"stream": True, "max_steps": 12}}
    for case, more in cases.items():
        # Only shallow sizes, so that part of the encoder has no gradient; each process starts from
        # other weights.
        model = SMAEForPreTraining(masked_lm(dropout=None, seed=rank), ["1L-8d", "2L-32d"])
        settings = {"per_device_train_batch_size": 2, "logging_steps": 2, "ddp_backend": "gloo", "max_steps": 4}
        training = trainer(model, root / "ranks", **(settings | more))
        training.train()
        ends[case], logs[case] = dict(model.state_dict()), training.state.log_history
    return {"ends": ends, "logs": logs}


if __name__ == "__main__":
    killed_and_resumed(Path(sys.argv[1]))
