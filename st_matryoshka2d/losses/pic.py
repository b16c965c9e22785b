"""PIC: shallow narrow embeddings predict deeper wider ones (MIPIC, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import cos_sim
from torch import Tensor, nn
from torch.nn import functional as F

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.losses.checks import positive
from st_matryoshka2d.losses.distributed import gather, own_rows
from st_matryoshka2d.losses.step import Step, Term
from st_matryoshka2d.sizes import Size, full_size, sizes_ladder, validate_sizes


class PIC(Term):
    r"""Progressive information chaining (MIPIC, Eq. 15-17).

    .. math::
        L = \sum_{i=1}^{n-1} -\frac{1}{B} \sum_{b} \log
            \frac{\exp(\cos(\phi_i(z_i^b), z_{i+1}^b) / \tau)}{\sum_{b'} \exp(\cos(\phi_i(z_i^b),
            z_{i+1}^{b'}) / \tau)}

    along checkpoints :math:`(l_i, d_i)`, averaged over the text columns. Both sides of a link are
    trained. z is the pooled vector before any normalisation: the CLS state for models with CLS
    pooling, as in the paper, otherwise the mean or the last token.

    Args:
        checkpoints: At least two sizes, each deeper than the one before and not narrower; None for
            `sizes_ladder(model)`.
        weight: Weight of the term.
        temperature: Tau; 0.05 in Table 7.
        detach_target: Whether :math:`z_{i+1}` gets no gradient; the paper does not mention it.

    Attributes:
        phi: The projectors :math:`\phi_i`, two linear layers with a GELU between; used only in
            training.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> from st_matryoshka2d.losses import MultiSizeLoss
        >>> chain = PIC(["2L-32d", "4L-128d", "6L-384d"])
        >>> loss = MultiSizeLoss(model, MultipleNegativesRankingLoss(model), ["6L-384d"], terms=[chain])
    """

    uses_raw = True

    def __init__(
        self,
        checkpoints: Sequence[Size | str] | None = None,
        weight: float = 1.0,
        temperature: float = 0.05,
        detach_target: bool = False,
    ) -> None:
        super().__init__()
        self.asked = checkpoints
        self.weight = positive(weight, "weight", zero=True)
        self.temperature = positive(temperature, "temperature")
        self.detach_target = detach_target

    def attach(self, model: SentenceTransformer) -> None:
        """Check the checkpoints against the model, and create the projectors."""
        if hasattr(self, "phi"):
            raise UsageError("This PIC already belongs to a loss and holds its parameters. Create one per loss.")
        asked = sizes_ladder(model) if self.asked is None else self.asked
        self.checkpoints = validate_sizes(asked, full_size(model), "checkpoints")
        links = list(pairwise(self.checkpoints))
        if not links or any(low.num_layers >= high.num_layers or low.dim > high.dim for low, high in links):
            raise UsageError(
                "checkpoints must be at least two sizes, each deeper than the one before and not narrower, got "
                f"{[str(size) for size in self.checkpoints]}."
            )
        dims = [(low.dim, high.dim) for low, high in links]
        projectors = (nn.Sequential(nn.Linear(low, high), nn.GELU(), nn.Linear(high, high)) for low, high in dims)
        self.phi = nn.ModuleList(projectors).to(model.device)

    def sizes_needed(self, trained: object, full: Size) -> set[Size]:
        """Return the checkpoints."""
        return set(self.checkpoints)

    def forward(self, step: Step) -> dict[str, Tensor]:
        """Return the weighted sum over the links, mean over the columns: `pic`."""
        links = zip(self.phi, pairwise(self.checkpoints), strict=True)
        losses = [
            self._link(phi, low, high, step.gather)
            for phi, (shallow, deep) in links
            for low, high in zip(step.raw_embeddings(shallow), step.raw_embeddings(deep), strict=True)
        ]
        return {"pic": self.weight * torch.stack(losses).sum() / len(step.inputs)}

    def get_config_dict(self) -> dict[str, object]:
        """Settings for the model card."""
        settings = ("weight", "temperature", "detach_target")
        checkpoints = [str(size) for size in self.checkpoints]
        return {"pic_checkpoints": checkpoints} | {f"pic_{name}": getattr(self, name) for name in settings}

    def _link(self, phi: nn.Module, low: Tensor, high: Tensor, gathered: bool) -> Tensor:
        """Return InfoNCE of one link, for one text column (Eq. 16)."""
        with torch.autocast(low.device.type, enabled=False):
            predicted = phi(low.to(next(phi.parameters()).dtype))
            targets = (high.detach() if self.detach_target else high).to(predicted.dtype)
            scores = cos_sim(predicted, gather(targets, gathered))
            return F.cross_entropy(scores / self.temperature, own_rows(low, gathered))
