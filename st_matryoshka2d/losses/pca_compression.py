"""Espresso's term: the first coordinates learn a compression of the whole embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from st_matryoshka2d.losses.checks import positive
from st_matryoshka2d.losses.distributed import gather
from st_matryoshka2d.losses.similarities import at_least_float32, kl_divergence
from st_matryoshka2d.losses.step import Step, Term
from st_matryoshka2d.sizes import Size, prefix

if TYPE_CHECKING:
    from jaxtyping import Float


class PCACompression(Term):
    r"""Pull the first coordinates of each trained size towards a PCA compression of the whole embedding (Espresso).

    .. math::
        \sum_{(n,d) \in S,\, d < D} w_{n,d}\, [MSE(E_n[:, :d], T) + KLDiv(E_n[:, :d]; T)],
        \quad T = E_n U_d S_d

    w are the weights of the step's sizes, E the embeddings of one text column before any
    normalisation; KLDiv is over their coordinates. Text columns are averaged. T gets no gradient.
    The authors' code uses a random low-rank decomposition.

    Args:
        weight: Weight of the term.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import CoSENTLoss
        >>> from st_matryoshka2d.losses import MultiSizeLoss
        >>> loss = MultiSizeLoss(model, CoSENTLoss(model), ["3L-64d", "6L-384d"], terms=[PCACompression()])
    """

    uses_raw = True

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = positive(weight, "weight", zero=True)

    def forward(self, step: Step) -> dict[str, Tensor]:
        """Return the weighted sum over the sizes, averaged over the columns: `compress`."""
        total = next(iter(step.raw.values()))[0].new_zeros(())
        for size, weight in step.weights.items():
            if size.dim < step.full.dim and self.weight * weight:
                whole = step.raw_embeddings(Size(size.num_layers, step.full.dim))
                losses = [self._column(column, size.dim, step.gather) for column in whole]
                total = total + weight * torch.stack(losses).mean()
        return {"compress": self.weight * total}

    def get_config_dict(self) -> dict[str, object]:
        """Settings for the model card."""
        return {"compress_weight": self.weight}

    def _column(self, column: Tensor, dim: int, gathered: bool) -> Tensor:
        with torch.autocast(column.device.type, enabled=False):
            embeddings = at_least_float32(column)
            basis = _pca(gather(embeddings.detach(), gathered), dim).to(embeddings)
            target, student = embeddings.detach() @ basis, prefix(embeddings, dim)
            return F.mse_loss(student, target) + kl_divergence(student, target, temperature=1.0)


@torch.no_grad()
def _pca(seen: Float[Tensor, "texts full"], dim: int) -> Float[Tensor, "full dim"]:
    """Return U_k S_k, the principal directions of the attention among coordinates."""
    # A = U S V^T = softmax(E^T E / sqrt(D)). The eigenvectors of A A^T, in double precision, give U
    # and S like an exact SVD, in half the time. Each column of U has its entry of largest magnitude
    # made positive, or the target would flip.
    # Apple's GPUs have no double
    texts = seen.to("cpu" if seen.device.type == "mps" else seen.device, torch.float64)
    attention = torch.softmax(texts.T @ texts / texts.shape[1] ** 0.5, dim=-1)
    squares, vectors = torch.linalg.eigh(attention @ attention.T)  # ascending
    vectors = vectors[:, -dim:].flip(1)
    signs = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)).sign()
    directions: Tensor = vectors * signs * squares[-dim:].flip(0).clamp(min=0).sqrt()
    return directions
