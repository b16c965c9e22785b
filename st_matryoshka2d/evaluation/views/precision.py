"""Fewer bits for each coordinate, as mteb's `CompressionWrapper` gives them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mteb.models import CompressionWrapper, ModelMeta
from mteb.types import OutputDType
from torch import Tensor

from st_matryoshka2d.evaluation.grid.columns import AXES

__all__ = ["RANGED", "check_precision", "quantise", "ranges_of"]

# Integers, which are spread over the ranges of some embeddings.
RANGED = {"int8", "uint8", "int4", "uint4"}


def check_precision(precision: str) -> str:
    """A precision that mteb knows.

    Raises:
        ValueError: It does not.
    """
    known = [AXES["precision"], *sorted(RANGED), "binary", "float16", "bfloat16"]
    if precision not in known:
        raise ValueError(f"precision must be one of {', '.join(known)}, got {precision!r}.")
    return precision


def ranges_of(embeddings: Tensor) -> Tensor:
    """Smallest and largest value of each coordinate, (2, dim): what integers are spread over.

    Args:
        embeddings: (texts, dim).
    """
    return torch.stack([embeddings.amin(0), embeddings.amax(0)])


def quantise(embeddings: Tensor, precision: str, ranges: Tensor | None = None) -> Tensor:
    """Embeddings with fewer bits, as float32 numbers.

    Args:
        embeddings: (texts, dim).
        precision: `"float32"` gives them back as they are.
        ranges: (2, dim), of `ranges_of`: what integers are spread over; values beyond are clipped. None: the ranges of these
            embeddings.
    """
    if precision == AXES["precision"]:
        return embeddings
    if precision not in RANGED or ranges is None:
        return _compressed(embeddings, precision)
    # The wrapper takes its ranges from what it is given: with the two extremes on top, they are the ones wanted.
    clipped = torch.clamp(embeddings, ranges[0], ranges[1])
    return _compressed(torch.cat([ranges, clipped]), precision)[2:]


def _compressed(embeddings: Tensor, precision: str) -> Tensor:
    with _quiet_wrapper():
        wrapper = CompressionWrapper(_Given(embeddings), OutputDType(precision))  # type: ignore[arg-type]
        compressed = wrapper.encode(None, task_metadata=None, hf_split="", hf_subset="")  # type: ignore[arg-type]
    # A coordinate that is the same in all texts has no range, which mteb makes NaN of.
    return torch.nan_to_num(torch.as_tensor(compressed).float())


@contextmanager
def _quiet_wrapper() -> Iterator[None]:
    """Hide that the wrapper has few embeddings to take its ranges from, which it says twice, and here of every chunk."""
    logger = logging.getLogger(CompressionWrapper.__module__)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Estimating quantization parameters", category=UserWarning)
            yield
    finally:
        logger.setLevel(before)


class _Given:
    """An encoder, as far as the wrapper looks, that has its embeddings already."""

    def __init__(self, embeddings: Tensor) -> None:
        self._embeddings = embeddings
        self.mteb_model_meta = ModelMeta.create_empty()

    def encode(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._embeddings
