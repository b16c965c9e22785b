"""Train a method, and align trained models."""

from __future__ import annotations

import argparse
import copy
import time

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from transformers import set_seed

from reproduction.budget import budget, nli, unlabelled
from reproduction.methods import ABLATIONS, METHODS, PRETRAINED, SEPARATE
from reproduction.pretraining import pretrained
from reproduction.suites import WHOLE
from st_matryoshka2d import Size, align, sizes_ladder, truncate

__all__ = ["aligned", "trained"]


def trained(
    method: str, seed: int, options: argparse.Namespace, start: SentenceTransformer | None = None
) -> tuple[dict[str, SentenceTransformer], float]:
    """Train a method; return its models and the seconds it took.

    Args:
        method: A key of `METHODS` or `ABLATIONS`.
        seed: Seed of the training.
        options: Those of the command line.
        start: The model to start from; None for the one that the method starts from.

    Returns:
        Models by size: one under `WHOLE`, or one for each size for separate training.
    """
    seconds = 0.0
    if start is None:
        start, seconds = started(method, seed, options)
    if method != SEPARATE:
        return {WHOLE: start}, seconds + train(start, method, seed, options)
    models = {str(size): copy.deepcopy(cut(start, size)) for size in sizes_ladder(start)}
    return models, sum(train(model, method, seed, options) for model in models.values())


def started(method: str, seed: int, options: argparse.Namespace) -> tuple[SentenceTransformer, float]:
    """Return the model that a method starts from and the seconds it took."""
    if method == PRETRAINED:
        return pretrained(seed, options)
    return SentenceTransformer(options.model, device=options.device), 0.0


def aligned(model: SentenceTransformer, seed: int, options: argparse.Namespace) -> tuple[SentenceTransformer, float]:
    """Align a model on 10,000 unlabelled texts; return it and the seconds it took."""
    begin = time.perf_counter()
    made = align(model, unlabelled(seed, options), layers=options.layers, batch_size=options.batch_size)
    return made, time.perf_counter() - begin


def cut(model: SentenceTransformer, size: Size) -> SentenceTransformer:
    """Cut the model to a size."""
    return truncate(model, size.num_layers, size.dim)


def train(model: SentenceTransformer, method: str, seed: int, options: argparse.Namespace) -> float:
    """Train the model in place; return the seconds it took."""
    set_seed(seed)
    make_loss = (METHODS | ABLATIONS)[method]
    if make_loss is None:
        return 0.0
    arguments = SentenceTransformerTrainingArguments(
        learning_rate=options.learning_rate,
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        **budget(seed, options),
    )
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=nli(options), loss=make_loss(model))
    begin = time.perf_counter()
    trainer.train()
    return time.perf_counter() - begin
