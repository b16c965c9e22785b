"""AnglE's objective, which the authors of 2DMSE wrap, from losses of sentence-transformers."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import AnglELoss, CoSENTLoss, MultipleNegativesRankingLoss
from torch import Tensor, nn

__all__ = ["AnglEObjective"]


class AnglEObjective(nn.Module):
    """Cosine, in-batch and angle terms on pairs with labels 0 and 1, as in `docs/training_measured.md`."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.cosine, self.in_batch, self.angle = CoSENTLoss(model), MultipleNegativesRankingLoss(model), AnglELoss(model)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> dict[str, Tensor]:
        """Return the three terms."""
        left, right = embeddings
        similar = labels == 1  # only these pairs are positives; all other right texts are negatives
        columns = [left[similar], right[similar], right[~similar]]
        return {
            "cosine": self.cosine.compute_loss_from_embeddings(embeddings, labels),
            "in_batch": self.in_batch.compute_loss_from_embeddings(columns, labels) if similar.any() else 0 * left.sum(),
            "angle": self.angle.compute_loss_from_embeddings(embeddings, labels),
        }
