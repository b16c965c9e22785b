"""Alignment: small sizes learn from large ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from sentence_transformers import util
from sentence_transformers.sentence_transformer.losses import SiameseDistanceMetric, TripletDistanceMetric
from torch import Tensor, nn
from torch.nn import functional as F

from st_matryoshka2d.dims import prefix
from st_matryoshka2d.losses.checks import one_of, positive
from st_matryoshka2d.losses.distributed import gather, own_rows
from st_matryoshka2d.losses.step import Step, Term
from st_matryoshka2d.sizes import Size

Similarity = Callable[[Tensor, Tensor], Tensor]

# Matrix forms of pairwise similarities. Angles have none that search would use, so they map to cosine.
_MATRIX_FORM: dict[object, Similarity] = {
    util.pairwise_cos_sim: util.cos_sim,
    util.pairwise_dot_score: util.dot_score,
    util.pairwise_euclidean_sim: util.euclidean_sim,
    util.pairwise_manhattan_sim: util.manhattan_sim,
    util.pairwise_angle_sim: util.cos_sim,
    TripletDistanceMetric.COSINE: util.cos_sim,
    TripletDistanceMetric.EUCLIDEAN: util.euclidean_sim,
    TripletDistanceMetric.MANHATTAN: util.manhattan_sim,
    SiameseDistanceMetric.COSINE_DISTANCE: util.cos_sim,
    SiameseDistanceMetric.EUCLIDEAN: util.euclidean_sim,
    SiameseDistanceMetric.MANHATTAN: util.manhattan_sim,
}


def matrix_similarity(loss: nn.Module) -> Similarity:
    """Return the wrapped loss's similarity between all rows of two batches; cosine if it has none."""
    own: Any = getattr(loss, "similarity_fct", None) or getattr(loss, "distance_metric", None)
    if own in _MATRIX_FORM:
        return _MATRIX_FORM[own]
    with suppress(RuntimeError, TypeError, ValueError):
        if callable(own) and own(torch.eye(3, 4), torch.eye(2, 4)).shape == (3, 2):
            return cast(Similarity, own)
    if not callable(own) or not hasattr(loss, "similarity_fct"):
        return util.cos_sim
    raise ValueError(
        f"{type(loss).__name__} compares pairs with {getattr(own, '__name__', own)!r}, which cannot compare all rows of "
        "two batches. Give the loss one of sentence-transformers' similarities, or pass kl_over='embedding'."
    )


def score_logits(
    columns: list[Float[Tensor, "batch dim"]], similarity: Similarity, gathered: bool = False
) -> Float[Tensor, "batch candidates"]:
    """Compare the first column's texts with all texts of the other columns; a single column's with each other."""
    texts, *others = columns
    if not others:
        return scores_of_others(texts, texts, similarity, gathered)
    return at_least_float32(similarity(texts, torch.cat([gather(column, gathered) for column in others])))


def scores_of_others(
    texts: Float[Tensor, "batch dim"], candidates: Float[Tensor, "batch dim"], similarity: Similarity, gathered: bool = False
) -> Float[Tensor, "batch others"]:
    """Compare each text with all candidates except its own row."""
    scores = at_least_float32(similarity(texts, gather(candidates, gathered)))
    is_other = torch.ones_like(scores, dtype=torch.bool).scatter(1, own_rows(texts, gathered).unsqueeze(1), False)
    return scores[is_other].view(len(texts), -1)


def kl_divergence(student: Float[Tensor, "batch n"], teacher: Float[Tensor, "batch n"], temperature: float) -> Tensor:
    r"""Return the KL divergence of two softmaxes, :math:`\sum t (\log t - \log s)`, mean over rows."""
    log_student = F.log_softmax(student / temperature, dim=-1)
    log_teacher = F.log_softmax(teacher.detach() / temperature, dim=-1)
    return F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)


class KLAlignment(Term):
    """Pull the score distributions of small sizes towards a larger size's (2DMSE, Eq. 6; Starbucks, Eq. 5).

    Starbucks aligns every size with (N, D) and averages over the sizes; 2DMSE aligns every shallower size with the last
    layer at the same dim and sums. The teacher gets no gradient.

    Args:
        weight: Weight of the term.
        temperature: Temperature of both softmaxes.
        over: `"scores"`: softmax over the similarities of the first column's texts to all texts of the other columns, or of
            a single column's texts to each other. `"embedding"`: softmax over coordinates, the teacher cut to the student's
            dim and the divergence multiplied by the temperature, as in the 2DMSE authors' code.
        teacher: `"full"`: the full size. `"last_layer"`: the last layer at the student's own dim.
        reduction: `"mean"` over all sizes of the step, or `"sum"` over those that are not their own teacher.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import CoSENTLoss
        >>> from st_matryoshka2d.losses import MultiSizeLoss
        >>> loss = MultiSizeLoss(model, CoSENTLoss(model), ["2L-32d", "6L-384d"], terms=[KLAlignment()])
    """

    def __init__(
        self,
        weight: float = 1.0,
        temperature: float = 0.3,
        over: Literal["scores", "embedding"] = "scores",
        teacher: Literal["full", "last_layer"] = "full",
        reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__()
        self.weight = positive(weight, "the weight of the KL term", zero=True)
        self.temperature = positive(temperature, "temperature")
        self.over = one_of(over, "over", ("scores", "embedding"))
        self.uses_similarity = over == "scores" and weight > 0
        self.teacher = one_of(teacher, "teacher", ("full", "last_layer"))
        self.reduction = one_of(reduction, "reduction", ("mean", "sum"))

    def sizes_needed(self, trained: Mapping[Size, float], full: Size) -> set[Size]:
        """Return the teachers."""
        return {teacher for _, teacher in self._pairs(trained, full)}

    def forward(self, step: Step) -> dict[str, Tensor]:
        """Return the weighted divergence of sizes from their teachers: `kl`."""
        pairs = self._pairs(step.weights, step.full)
        divergences = [step.shares[student] * self._divergence(step, student, teacher) for student, teacher in pairs]
        total = torch.stack(divergences).sum() if divergences else step.embeddings(step.full)[0].new_zeros(())
        return {"kl": self.weight * (total / sum(step.shares.values()) if self.reduction == "mean" else total)}

    def get_config_dict(self) -> dict[str, object]:
        """Settings for the model card."""
        settings = ("weight", "temperature", "over", "teacher", "reduction")
        return {f"kl_{name}": getattr(self, name) for name in settings}

    def _pairs(self, trained: Mapping[Size, float], full: Size) -> list[tuple[Size, Size]]:
        if self.weight == 0:
            return []
        pairs = [(size, full if self.teacher == "full" else Size(full.num_layers, size.dim)) for size in trained]
        return [(student, teacher) for student, teacher in pairs if student != teacher]

    def _divergence(self, step: Step, student: Size, teacher: Size) -> Tensor:
        students, teachers = step.embeddings(student), step.embeddings(teacher)
        if self.over == "scores":
            small, large = (score_logits(texts, step.similarity, step.gather) for texts in (students, teachers))
            return kl_divergence(small, large, self.temperature)
        small, large = (prefix(at_least_float32(torch.cat(texts)), student.dim) for texts in (students, teachers))
        return self.temperature * kl_divergence(small, large, self.temperature)


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision, which loses divergences of close distributions."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
