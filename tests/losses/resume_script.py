"""Script for `test_resume.py`: uninterrupted, killed and resumed trainings."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor

from st_matryoshka2d.losses import LossStateCallback, MIPICLoss
from st_matryoshka2d.losses.saved_state import own_parameters
from tests.support import families
from tests.support.killed import SAVED, STEPS, Kill, run_each
from tests.support.training import RECIPES, train


def two_losses(model: SentenceTransformer) -> dict[str, MIPICLoss]:
    task = MultipleNegativesRankingLoss(model)
    return {"old": MIPICLoss(model, task), "new": MIPICLoss(model, task, alpha=0.6)}


LOSSES: dict[str, Callable[[SentenceTransformer], Any]] = {
    **RECIPES,
    "MIPIC, cached": partial(RECIPES["MIPIC"], mini_batch_size=2),
    "a loss for each dataset": two_losses,
}
OTHER = partial(RECIPES["MIPIC"], dims=[5, 8, 16, 32])


@dataclass(frozen=True)
class Run:
    """One training, and the folder of its checkpoints."""

    root: Path
    name: str
    folder: str
    loss: Callable[[SentenceTransformer], Any] = RECIPES["MIPIC"]
    seed: int = 0
    killed: bool = False
    resume: str | bool | None = None
    told: str | None = None  # the checkpoint, by the training's arguments
    callback: bool = True
    learning_rate: float = 1e-3

    def __call__(self) -> dict[str, Tensor]:
        """Train; return the weights of the model and of the loss, and write what was said."""
        model = start(self.root)
        torch.manual_seed(self.seed)
        loss = self.loss(model)
        if self.resume:  # weights must come from the checkpoint, except those of a teacher
            for parameter in model.parameters():
                parameter.data.zero_()
        callbacks: list[Any] = [LossStateCallback(loss)] if self.callback else []
        settings: dict[str, Any] = {
            "max_steps": STEPS,
            "save_strategy": "steps",
            "save_steps": 2,
            "learning_rate": self.learning_rate,
            "resume_from_checkpoint": self.told,
            "multi_dataset_batch_sampler": "round_robin",
            "use_cpu": True,
            "resume": self.told or self.resume,
        }
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                callbacks += [Kill()] if self.killed else []
                train(model, loss, self.root / self.folder, rows(loss), callbacks, **settings)
                error = ""
            except (FileNotFoundError, ValueError) as raised:
                error = f"{type(raised).__name__}: {raised}"
        said = [str(warning.message) for warning in caught if "LossStateCallback" in str(warning.message)]
        (self.root / f"{self.name}.json").write_text(json.dumps({"error": error, "said": said}))
        model.save_pretrained(str(self.root / self.folder / "final"))
        weights = {f"model/{name}": value for name, value in model.state_dict().items()}
        for dataset, its_loss in (loss if isinstance(loss, dict) else {"": loss}).items():
            own = own_parameters(its_loss)
            weights |= {f"loss{dataset}/{name}": value.detach() for name, value in own.items()}
        return weights


def start(root: Path) -> SentenceTransformer:
    """Build a model with BERT's dropout."""
    return families.pipeline(families.CONFIGS["bert"](), root / "start", "mean", dense=None, normalize=False)


def rows(loss: Any) -> Dataset | DatasetDict:
    texts = families.TEXTS * 8

    def pairs(word: str) -> Dataset:
        return Dataset.from_dict({"anchor": texts, "positive": [f"{word} {text}" for text in texts]})

    return DatasetDict({word: pairs(word) for word in loss}) if isinstance(loss, dict) else pairs("old")


def main(root: Path) -> None:
    """Also resume without the callback, another run's checkpoint, without the file, and with another loss's."""
    start(root).save_pretrained(str(root / "compiled"))  # once, before forking
    runs = []
    for name, loss in LOSSES.items():
        runs.append(Run(root, f"{name}, whole", f"{name}/whole", loss))
        runs.append(Run(root, f"{name}, killed", f"{name}/killed", loss, killed=True))
        # The seed sets the loss's projections, which must come from the checkpoint.
        runs.append(Run(root, f"{name}, resumed", f"{name}/killed", loss, seed=1, resume=True))
    checkpoint = root / "MIPIC" / "whole" / f"checkpoint-{SAVED}"

    def copied(run: Run, without: str = "") -> dict[str, Tensor]:
        folder = root / run.folder / checkpoint.name
        shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns(without))
        return run()

    runs += [
        Run(root, "unsaved, killed", "unsaved", killed=True, callback=False),
        Run(root, "unsaved, resumed", "unsaved", resume=True, callback=False),
        Run(root, "another run", "another", seed=2, learning_rate=2e-3),
        Run(root, "elsewhere, not told", "another", resume=str(checkpoint)),
        Run(root, "elsewhere, told", "another", seed=1, resume=True, told=str(checkpoint)),
    ]
    trainings: dict[str, Callable[[], dict[str, Tensor]]] = {run.name: run for run in runs}
    trainings["no file"] = partial(copied, Run(root, "no file", "without", resume=True), "loss.safetensors")
    trainings["another loss"] = partial(copied, Run(root, "another loss", "mistaken", OTHER, resume=True))
    run_each(root, trainings)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
