"""Relational distillation: every size learns a teacher's similarities among the texts of a batch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device, cos_sim, pairwise_cos_sim
from torch import Tensor

from st_matryoshka2d._hosts.sentence_transformers import mini_batches
from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.losses.checks import check_mini_batches, positive
from st_matryoshka2d.losses.similarities import at_least_float32, kl_divergence, scores_of_others
from st_matryoshka2d.losses.step import Step, Term
from st_matryoshka2d.losses.teacher_input import check_reads_alike
from st_matryoshka2d.model.readout import Readout
from st_matryoshka2d.sizes import full_size, prefix

if TYPE_CHECKING:
    from jaxtyping import Float


class RelationalDistill(Term):
    r"""Pull the similarities among a batch's texts towards a teacher's, at every size: the loss of `RelationalDistillLoss`.

    `across` adds a part that keeps all sizes in the teacher's space: each text's embedding v at (n,
    d) is compared with the teacher's embeddings z of the other texts, cut to the same d, and pulled
    towards its own z:

    .. math::
        \begin{split}
        & \frac{1}{|S|} \sum_{(n,d) \in S} \frac{1}{B} \sum_{i=1}^{B} KLDiv(a_i; t_i) + 2 (1 -
        \cos(v_i, z_i[:d])) \\ & a_i = softmax_{j \ne i}(\cos(v_i, z_j[:d]) / \tau) \end{split}

    The teacher's first d coordinates must be good embeddings themselves.

    Args:
        teacher: None for a frozen copy of the trained model, made when the loss is built and never
            saved; a `SentenceTransformer` of any width, which is frozen and reads the model's
            tokens; or `"labels"` if the label column holds the embeddings of any teacher, (batch,
            width) or (batch, columns, width).
        weight: Weight of the term.
        temperature: Temperature of both softmaxes.
        mini_batch_size: Texts that the teacher embeds at once; None for a whole column.
        mini_batch_num_tokens: Tokens that the teacher embeds at once, instead of texts.
        across: Weight of the second part, multiplied by `weight`; 0 disables it. Needs a teacher as
            wide as the student. None for 1 if an aligned model is its own teacher, else 0.

    Raises:
        ValueError: When the loss is built: the teacher has another tokenizer or `max_seq_length`
            than the model, or `across` is used with a teacher of another width; for `"labels"`, at
            the first batch.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import CoSENTLoss
        >>> from st_matryoshka2d.losses import MultiSizeLoss
        >>> loss = MultiSizeLoss(model, CoSENTLoss(model), ["2L-32d", "6L-384d"], terms=[RelationalDistill()])
    """

    def __init__(
        self,
        teacher: SentenceTransformer | Literal["labels"] | None = None,
        weight: float = 1.0,
        temperature: float = 0.05,
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
        across: float | None = None,
    ) -> None:
        super().__init__()
        if not (teacher is None or teacher == "labels" or isinstance(teacher, SentenceTransformer)):
            raise UsageTypeError(f"teacher must be a SentenceTransformer, 'labels' or None, got {teacher!r}.")
        self.from_labels = teacher == "labels"
        self.teacher = teacher if isinstance(teacher, SentenceTransformer) else None
        self.weight = positive(weight, "weight")
        self.temperature = positive(temperature, "temperature")
        check_mini_batches(mini_batch_size, mini_batch_num_tokens)
        self.mini_batch_size = mini_batch_size
        self.mini_batch_num_tokens = mini_batch_num_tokens
        self.asked_across = None if across is None else positive(across, "across", zero=True)
        self.across = self.asked_across or 0.0

    def attach(self, model: SentenceTransformer) -> None:
        """Freeze the teacher, and check that it can read the student's tokens."""
        if self.from_labels:
            return
        trained = {parameter.data_ptr() for parameter in model.parameters()}
        if self.teacher is None:
            self.teacher = frozen_copy(model)
            if self.asked_across is None and any(isinstance(module, Readout) for module in model.modules()):
                self.across = 1.0
        else:
            check_reads_alike(self.teacher, model)
        if any(parameter.data_ptr() in trained for parameter in self.teacher.parameters()):
            # the model itself or a cut of it, which training would change
            self.teacher = frozen_copy(self.teacher)
        self.teacher.requires_grad_(False)
        if self.across and (width := self.teacher.get_embedding_dimension()) is not None:
            _check_width(width, full_size(model).dim)

    def forward(self, step: Step) -> dict[str, Tensor]:
        """Return the weighted divergences from the teacher, averaged over texts and sizes: `distill`, `distill_across`."""
        with torch.no_grad():
            teacher = self._teacher_embeddings(step)
            target = scores_of_others(teacher, teacher, cos_sim, step.gather)
        students = [torch.cat(step.embeddings(size)) for size in step.weights]
        scores = [scores_of_others(student, student, cos_sim, step.gather) for student in students]
        divergences = [kl_divergence(student, target, self.temperature) for student in scores]
        parts = {"distill": self.weight * step.mean(divergences)}
        if self.across:
            _check_width(teacher.shape[1], step.full.dim)
            distances = [self._across(student, teacher, target, step.gather) for student in students]
            parts["distill_across"] = self.weight * self.across * step.mean(distances)
        return parts

    def get_config_dict(self) -> dict[str, object]:
        """Settings for the model card."""
        teacher = "labels" if self.from_labels else type(self.teacher).__name__
        settings = ("weight", "temperature", "across")
        return {"distill_teacher": teacher} | {f"distill_{name}": getattr(self, name) for name in settings}

    def _across(self, student: Tensor, teacher: Tensor, target: Tensor, gathered: bool) -> Tensor:
        """Return the second part for one size: distances to the teacher's embeddings of other texts and of the same."""
        student = at_least_float32(student)
        teacher = prefix(teacher, student.shape[1]).to(student)
        scores = scores_of_others(student, teacher, cos_sim, gathered)
        return kl_divergence(scores, target, self.temperature) + 2 * (1 - pairwise_cos_sim(student, teacher)).mean()

    def _teacher_embeddings(self, step: Step) -> Float[Tensor, "texts width"]:
        """Embed all texts of the batch, column after column."""
        if self.teacher is None:
            return torch.cat(teacher_columns(step.labels, len(step.inputs)))
        self.teacher.eval()
        embeddings = [self._embed(self.teacher, column) for column in step.inputs]
        return torch.cat(embeddings).to(next(iter(step.columns.values()))[0].device)

    def _embed(self, teacher: SentenceTransformer, column: Mapping[str, Any]) -> Tensor:
        parts: Iterable[dict[str, Any]] = [dict(column)]
        # a token limit replaces the text limit
        if self.mini_batch_size or self.mini_batch_num_tokens:
            parts = mini_batches(dict(column), self.mini_batch_size or 1, self.mini_batch_num_tokens)
        embeddings: list[Tensor] = []
        for part in parts:
            features: Any = batch_to_device(part, teacher.device)
            embeddings.append(teacher(features)["sentence_embedding"])
        return torch.cat(embeddings)[:, : teacher.truncate_dim]


def frozen_copy(model: SentenceTransformer) -> SentenceTransformer:
    """Return a copy of the model that training does not change."""
    teacher = copy.deepcopy(model, {id(model.model_card_data): model.model_card_data})
    return teacher.eval().requires_grad_(False)


def teacher_columns(
    labels: Tensor | None, count: int, width: int | None = None, *, shared: bool = False
) -> list[Float[Tensor, "batch width"]]:
    """Split labels into teacher embeddings per text column; if `shared`, one matrix may serve all columns."""
    is_embedding = labels is not None and labels.ndim in (2, 3) and labels.is_floating_point()
    if labels is None or not is_embedding or labels.shape[-1] != (width or labels.shape[-1]):
        raise UsageError(
            "Labels must be teacher embeddings, (batch, width) or (batch, columns, width)"
            f"{f', as wide as the model: {width}' if width else ''}; got {None if labels is None else tuple(labels.shape)}."
        )
    columns = [labels] * (count if shared else 1) if labels.ndim == 2 else list(labels.unbind(1))
    if len(columns) != count:
        raise UsageError(f"Labels hold teacher embeddings for {len(columns)} columns, the dataset has {count}.")
    return [column.detach() for column in columns]


def _check_width(teacher: int, student: int) -> None:
    if teacher != student:
        raise UsageError(
            f"across compares coordinates, but the teacher's embeddings have {teacher} and the student's {student}. Use a "
            "teacher as wide as the student, or across=0, which compares only similarities."
        )
