"""The term by which small sizes learn from large ones: a divergence of their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from st_matryoshka2d.losses.checks import one_of, positive
from st_matryoshka2d.losses.similarities import at_least_float32, kl_divergence, score_logits
from st_matryoshka2d.losses.step import Step, Term
from st_matryoshka2d.sizes import Size, prefix


class KLAlignment(Term):
    """Pull the score distributions of small sizes towards a larger size's (2DMSE, Eq. 6; Starbucks, Eq. 5).

    Starbucks aligns every size with (N, D) and averages over the sizes; 2DMSE aligns every
    shallower size with the last layer at the same dim and sums. The teacher gets no gradient.

    Args:
        weight: Weight of the term.
        temperature: Temperature of both softmaxes.
        over: `"scores"`: softmax over the similarities of the first column's texts to all texts of
            the other columns, or of a single column's texts to each other. `"embedding"`: softmax
            over coordinates, the teacher cut to the student's dim and the divergence multiplied by
            the temperature, as in the 2DMSE authors' code.
        teacher: `"full"`: the full size. `"last_layer"`: the last layer at the student's own dim.
        reduction: `"mean"` over all sizes of the step, or `"sum"` over those that are not their own
            teacher.

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
