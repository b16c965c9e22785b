"""Train a method, and align trained models."""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint

from reproduction.budget import budget, labelled, nli, twice, unlabelled
from reproduction.methods import (
    ABLATIONS,
    ALL_DIMS,
    BY_SIZE,
    FOR_LADDER,
    LABELLED,
    METHODS,
    PRETRAINED,
    ROTATED,
    SIMCSE,
    UNALIGNED_ENDS,
)
from reproduction.pretraining import pretrained
from reproduction.suites import WHOLE
from st_matryoshka2d import Size, align, load, sizes_ladder, truncate
from st_matryoshka2d.losses import LossStateCallback
from st_matryoshka2d.model.layers import ENDS, FIRST
from st_matryoshka2d.model.pipeline import Pipeline

__all__ = ["aligned", "checkpoints", "trained"]

# Share of the steps between two checkpoints.
SAVE_STEPS = 0.1


def trained(
    method: str, seed: int, options: argparse.Namespace, start: SentenceTransformer | None = None
) -> tuple[dict[str, SentenceTransformer], float]:
    """Train a method; return its models and the seconds it took.

    Args:
        method: A key of `METHODS`, `ABLATIONS` or `SIMCSE`.
        seed: Seed of the training.
        options: Those of the command line.
        start: The model to start from; None for the one that the method starts from.

    Returns:
        Models by size: one under `WHOLE`, or one for each size for separate training. The seconds
            are those of this run: a
        training that was interrupted continues from its last checkpoint.
    """
    seconds = 0.0
    if start is None:
        start, seconds = started(method, seed, options)
    folder = checkpoints(method, seed, options)
    if method not in BY_SIZE:
        return {WHOLE: start}, seconds + train(start, method, seed, options, folder)
    models = {str(size): copy.deepcopy(cut(start, size, method)) for size in sizes_ladder(start)}
    return models, sum(train(model, method, seed, options, folder / size) for size, model in models.items())


def checkpoints(method: str, seed: int, options: argparse.Namespace) -> Path:
    """Return the folder of a training's checkpoints."""
    return Path(options.out) / "training" / f"{method.replace(' ', '_')}.{seed}"


def started(method: str, seed: int, options: argparse.Namespace) -> tuple[SentenceTransformer, float]:
    """Return the model that a method starts from and the seconds it took."""
    if method == PRETRAINED:
        return pretrained(seed, options, checkpoints(method, seed, options) / "backbone")
    model = SentenceTransformer(options.model, device=options.device)
    layers = ENDS if method == UNALIGNED_ENDS else FIRST
    return truncate(model, num_layers=Pipeline.of(model).full.num_layers, layers=layers), 0.0


def aligned(
    model: SentenceTransformer, method: str, seed: int, options: argparse.Namespace
) -> tuple[SentenceTransformer, float]:
    """Align a model on unlabelled texts; return it and the seconds it took."""
    texts, sizes = (50_000, sizes_ladder(model)) if method in FOR_LADDER else (10_000, None)
    settings: dict[str, Any] = {"layers": options.layers, "batch_size": options.batch_size}
    begin = time.perf_counter()
    made = align(model, unlabelled(seed, options, texts), sizes, rotation=ROTATED.get(method), **settings)
    return made, time.perf_counter() - begin


def cut(model: SentenceTransformer, size: Size, method: str) -> SentenceTransformer:
    """Cut the model to a size, or to its layers only if all dims are trained."""
    return truncate(model, num_layers=size.num_layers, dim=None if method == ALL_DIMS else size.dim)


def train(model: SentenceTransformer, method: str, seed: int, options: argparse.Namespace, folder: Path) -> float:
    """Train the model in place, from the last checkpoint in the folder if there is one; return the seconds it took."""
    set_seed(seed)
    make_loss = (METHODS | ABLATIONS | SIMCSE)[method]
    if make_loss is None:
        return 0.0
    last = get_last_checkpoint(str(folder)) if folder.exists() else None
    # the Trainer would add a step to a finished training
    if last and last.endswith(f"-{options.steps}"):
        model.load_state_dict(load(last, device=options.device).state_dict())
        return 0.0
    loss = make_loss(model)
    saving = {"save_strategy": "steps", "save_steps": SAVE_STEPS, "save_total_limit": 1}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        learning_rate=options.learning_rate,
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        **budget(seed, options) | saving,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=texts(method, seed, options),
        loss=loss,
        callbacks=[LossStateCallback(loss)],
    )
    begin = time.perf_counter()
    trainer.train(resume_from_checkpoint=last)
    return time.perf_counter() - begin


def texts(method: str, seed: int, options: argparse.Namespace) -> Dataset:
    """Return what a method is trained on."""
    if method in SIMCSE:
        return twice(seed, options)
    return labelled(options) if method == LABELLED else nli(options)
