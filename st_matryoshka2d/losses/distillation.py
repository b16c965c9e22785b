"""Relational distillation: every size learns how a teacher relates the texts of a batch to each other."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import _create_minibatch, _get_batch_size, _minibatch_ranges
from sentence_transformers.base.modules import Router
from sentence_transformers.util import batch_to_device, cos_sim
from torch import Tensor, nn

from st_matryoshka2d.dims import prefix
from st_matryoshka2d.layers import route_taken
from st_matryoshka2d.losses.alignment import kl_divergence, score_logits
from st_matryoshka2d.losses.checks import check_mini_batches, positive
from st_matryoshka2d.losses.step import Step, Term

__all__ = ["NoTask", "RelationalDistill", "frozen_copy", "teacher_columns"]


class NoTask(nn.Module):
    """A wrapped loss that asks for nothing, so that terms are all there is to train.

    Args:
        gather_across_devices: Whether the terms compare texts with those of all processes.
    """

    def __init__(self, gather_across_devices: bool = False) -> None:
        super().__init__()
        self.gather_across_devices = gather_across_devices

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None) -> dict[str, Tensor]:
        """No parts."""
        return {}


def frozen_copy(model: SentenceTransformer) -> SentenceTransformer:
    """A copy of the model as it is now, which no training changes.

    Args:
        model: The model to copy; its model card is not copied along.
    """
    teacher = copy.deepcopy(model, {id(model.model_card_data): model.model_card_data})
    return teacher.eval().requires_grad_(False)


class RelationalDistill(Term):
    r"""Pull the similarities among a batch's texts, at every size, towards a teacher's.

    .. math::
        \frac{1}{|S|} \sum_{(n,d) \in S} \frac{1}{B} \sum_{i=1}^{B} KLDiv(s_i^{n,d}; t_i), \quad
        t_i = softmax_{j \ne i}(\cos(z_i, z_j) / \tau)

    where i and j run over all texts of the batch, all columns together, and z are the teacher's full embeddings; s is the
    same for the student cut to (n, d). A text is not compared with itself. Where the wrapped loss gathers the texts of all
    processes, so does this.

    Args:
        teacher: None: the model that is trained, frozen as it is when the loss is built (a copy of its weights is kept
            while training, and never saved). A `SentenceTransformer` of any width and with any tokenizer, which is frozen
            here. `"labels"`: the dataset's label column holds the teacher's embeddings, (batch, width) or (batch, columns,
            width), and no model is run.
        weight: Of the term.
        temperature: Of both softmaxes.
        mini_batch_size: Texts that the teacher embeds at once; None for a column at a time.
        mini_batch_num_tokens: Tokens that it embeds at once, instead of texts.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> from st_matryoshka2d import sizes_ladder
        >>> from st_matryoshka2d.losses import MultiSizeLoss
        >>> task = MultipleNegativesRankingLoss(model)
        >>> loss = MultiSizeLoss(model, task, sizes_ladder(model), terms=[RelationalDistill()])
    """

    def __init__(
        self,
        teacher: SentenceTransformer | Literal["labels"] | None = None,
        weight: float = 1.0,
        temperature: float = 0.05,
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
    ) -> None:
        super().__init__()
        if not (teacher is None or teacher == "labels" or isinstance(teacher, SentenceTransformer)):
            raise TypeError(f"teacher must be a SentenceTransformer, 'labels' or None, got {teacher!r}.")
        self.from_labels = teacher == "labels"
        self.teacher = teacher if isinstance(teacher, SentenceTransformer) else None
        self.weight = positive(weight, "weight")
        self.temperature = positive(temperature, "temperature")
        check_mini_batches(mini_batch_size, mini_batch_num_tokens)
        self.mini_batch_size = mini_batch_size
        self.mini_batch_num_tokens = mini_batch_num_tokens

    def attach(self, model: SentenceTransformer) -> None:
        """Freeze the teacher, and see whether it reads the student's tokens."""
        if self.from_labels:
            return
        trained = {parameter.data_ptr() for parameter in model.parameters()}
        if self.teacher is None:
            self.teacher = frozen_copy(model)
        elif any(parameter.data_ptr() in trained for parameter in self.teacher.parameters()):
            self.teacher = frozen_copy(self.teacher)  # the model itself or a cut of it, which training would move
        self.teacher.requires_grad_(False)
        theirs = {name: _vocabulary(module) for name, module in _readers(self.teacher).items()}
        ours = {name: _vocabulary(module) for name, module in _readers(model).items()}
        self.read_alike = {name for name in ours if theirs.get(name, theirs.get("")) == ours[name]}
        self.tokenizers = {name: module.tokenizer for name, module in _readers(model).items()}
        self.route_of = partial(route_taken, model)

    def forward(self, step: Step) -> dict[str, Tensor]:
        """Weighted divergence from the teacher, mean over the texts and the sizes: `distill`."""
        with torch.no_grad():
            target = score_logits([self._teacher_embeddings(step)], cos_sim, step.gather)
        students = [score_logits([torch.cat(step.embeddings(size))], cos_sim, step.gather) for size in step.weights]
        divergences = [kl_divergence(student, target, self.temperature) for student in students]
        return {"distill": self.weight * torch.stack(divergences).mean()}

    def get_config_dict(self) -> dict[str, object]:
        """Settings, for the model card."""
        teacher = "labels" if self.from_labels else type(self.teacher).__name__
        return {"distill_teacher": teacher, "distill_weight": self.weight, "distill_temperature": self.temperature}

    def _teacher_embeddings(self, step: Step) -> Float[Tensor, "texts width"]:
        """All texts of the batch, column after column."""
        if self.teacher is None:
            return _labelled(step.labels, len(step.inputs))
        self.teacher.eval()
        embeddings = [self._embed(self.teacher, column) for column in step.inputs]
        return torch.cat(embeddings).to(next(iter(step.columns.values()))[0].device)

    def _embed(self, teacher: SentenceTransformer, column: Mapping[str, Any]) -> Tensor:
        route, batch = self.route_of(column), dict(column)
        at_once = self.mini_batch_size or _get_batch_size(batch)
        embeddings: list[Tensor] = []
        for start, end in _minibatch_ranges(batch, at_once, self.mini_batch_num_tokens):
            features: Any = _create_minibatch(batch, start, end)
            if route not in self.read_alike:
                features = teacher.preprocess(_texts(features, self.tokenizers[route]), task=column.get("task"))
            embeddings.append(teacher(batch_to_device(features, teacher.device))["sentence_embedding"])
        return torch.cat(embeddings)[:, : teacher.truncate_dim]


def _readers(model: SentenceTransformer) -> dict[str, Any]:
    """What makes tokens of texts, by route; under an empty name where there are none."""
    first = next(model.children())
    if isinstance(first, Router):
        return {name: next(modules.children()) for name, modules in first.sub_modules.items()}
    return {"": first}


def _texts(features: dict[str, Any], tokenizer: Any) -> list[str]:
    """What was tokenized, prompts included; one text after another, because a batch without padding is one long row."""
    rows = [_create_minibatch(features, row, row + 1)["input_ids"].flatten() for row in range(_get_batch_size(features))]
    texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return texts


def _vocabulary(module: Any) -> tuple[dict[str, int], int | None]:
    return module.tokenizer.get_vocab(), getattr(module, "max_seq_length", None)


def _labelled(labels: Tensor | None, columns: int) -> Tensor:
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
    """Teacher embeddings come as labels, (batch, D) or (batch, columns, D): cut them like the student's.

    Args:
        labels: What the dataset's label column holds.
        count: Text columns in the batch.
        dim: Of the student.
        full_dim: D.

    Raises:
        ValueError: Other shapes.
    """
    if labels is None or labels.ndim not in (2, 3) or labels.shape[-1] != full_dim:
        found = None if labels is None else tuple(labels.shape)
        raise ValueError(f"Teacher embeddings as wide as the model ({full_dim}) are needed as labels, got shape {found}.")
    if labels.ndim == 3 and labels.shape[1] != count:
        raise ValueError(f"Labels hold teacher embeddings for {labels.shape[1]} columns, the dataset has {count}.")
    columns = [labels] * count if labels.ndim == 2 else list(labels.unbind(1))
    return [prefix(column.detach(), dim) for column in columns]
