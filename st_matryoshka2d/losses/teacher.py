"""The teacher of a distillation: a model that stays as it is, or embeddings in the label column."""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import _create_minibatch, _get_batch_size
from sentence_transformers.base.modules import Router
from torch import Tensor

from st_matryoshka2d.dims import prefix

__all__ = ["check_width", "frozen_copy", "labelled", "readers", "teacher_columns", "texts_read", "vocabulary"]


def frozen_copy(model: SentenceTransformer) -> SentenceTransformer:
    """A copy of the model as it is now, which no training changes."""
    teacher = copy.deepcopy(model, {id(model.model_card_data): model.model_card_data})
    return teacher.eval().requires_grad_(False)


def check_width(teacher: int, student: int) -> None:
    """Refuse to compare embeddings of different widths coordinate by coordinate."""
    if teacher != student:
        raise ValueError(
            "across compares the student with the teacher coordinate by coordinate, but the teacher's embeddings have "
            f"{teacher} and the student's {student}. Take a teacher as wide as the student, or across=0, which compares "
            "similarities alone."
        )


def readers(model: SentenceTransformer) -> dict[str, Any]:
    """What makes tokens of texts, by route; under an empty name where there are none."""
    first = next(model.children())
    if isinstance(first, Router):
        return {name: next(modules.children()) for name, modules in first.sub_modules.items()}
    return {"": first}


def texts_read(features: dict[str, Any], tokenizer: Any) -> list[str]:
    """What was tokenized, prompts included; one text after another, because a batch without padding is one long row."""
    rows = [_create_minibatch(features, row, row + 1)["input_ids"].flatten() for row in range(_get_batch_size(features))]
    texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return texts


def vocabulary(module: Any) -> tuple[dict[str, int], int | None]:
    """By which two modules are seen to make the same tokens of a text."""
    return module.tokenizer.get_vocab(), getattr(module, "max_seq_length", None)


def labelled(labels: Tensor | None, columns: int) -> Float[Tensor, "texts width"]:
    """Teacher embeddings that come as labels: all texts of the batch, column after column."""
    if labels is None or labels.ndim not in (2, 3) or not labels.is_floating_point():
        found = None if labels is None else tuple(labels.shape)
        raise ValueError(
            f"Teacher embeddings are expected as labels, (batch, width) or (batch, columns, width), got {found}."
        )
    by_column = labels.unsqueeze(1) if labels.ndim == 2 else labels
    if by_column.shape[1] != columns:
        raise ValueError(f"Labels hold teacher embeddings of {by_column.shape[1]} text columns, the dataset has {columns}.")
    return torch.cat(list(by_column.unbind(1)))


def teacher_columns(labels: Tensor | None, count: int, dim: int, full_dim: int) -> list[Tensor]:
    """Teacher embeddings from the labels, (batch, D) or (batch, columns, D), cut like the student's."""
    if labels is None or labels.ndim not in (2, 3) or labels.shape[-1] != full_dim:
        found = None if labels is None else tuple(labels.shape)
        raise ValueError(f"Teacher embeddings as wide as the model ({full_dim}) are needed as labels, got shape {found}.")
    if labels.ndim == 3 and labels.shape[1] != count:
        raise ValueError(f"Labels hold teacher embeddings for {labels.shape[1]} columns, the dataset has {count}.")
    columns = [labels] * count if labels.ndim == 2 else list(labels.unbind(1))
    return [prefix(column.detach(), dim) for column in columns]
