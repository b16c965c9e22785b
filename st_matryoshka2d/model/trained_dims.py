"""Warn when a loss trains dims that a cut does not return.

`truncate_dim` is a setting of `encode`. `forward`, which losses call, returns all dims, so a loss trains all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d.sizes import Size, full_size


def warn_if_wider_trained(cut: SentenceTransformer) -> None:
    """Make a cut warn in the backward pass of a loss that trains dims beyond its own."""
    cut.register_forward_hook(_watch)


def _watch(cut: Any, _: object, outputs: Mapping[str, Any]) -> None:
    """Watch the gradient of an embedding: only there is it known which dims a loss uses."""
    embedding = outputs.get("sentence_embedding")
    if cut.truncate_dim is None or torch.compiler.is_compiling():
        return
    if isinstance(embedding, Tensor) and embedding.requires_grad:
        embedding.register_hook(partial(_warn_if_wider, full_size(cut)))


def _warn_if_wider(size: Size, gradient: Tensor) -> None:
    if gradient[..., size.dim :].any():
        warnings.warn(
            f"The loss trains {gradient.shape[-1]} dims of this cut, but `encode` returns {size.dim}: `truncate_dim` is a "
            f'setting of `encode`, not of `forward`. To train {size}, use `MultiSizeLoss(cut, loss, ["{size}"])`, or '
            f"`MatryoshkaLoss(cut, loss, [{size.dim}])` of sentence-transformers.",
            stacklevel=2,
        )
