"""SIA: the full token states of each layer teach their own prefixes (MIPIC, section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling
from torch import Tensor, nn
from torch.nn import functional as F

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.losses.checks import positive
from st_matryoshka2d.losses.similarities import at_least_float32
from st_matryoshka2d.losses.step import Step, Term, Tokens
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import all_within, full_size, prefix, sizes_ladder

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

# If a text's states vary by less than this share of their size, its tokens count as equal, up to
# rounding.
_CONSTANT = 1e-6

Count = TypeVar("Count", int, Tensor)


class SIA(Term):
    r"""Self-distilled intra-relational alignment of token states (MIPIC, Eq. 4-14).

    .. math::
        L = \frac{1}{texts} \sum_{texts} \sum_{layers} \sum_{d_i < D} KL(a_i \| a_D) + 1 - CKA(h[:d_i], h)

    Prefixes should attend to the tokens of a text as the full states do, and preserve the geometry
    of the most attended tokens: :math:`k_i = \min(m, \max(8, \lceil \gamma_i m \rceil))` of m, CLS
    and SEP included. The query is the pooled vector before any normalisation: the CLS state for
    models with CLS pooling, as in the paper, otherwise the mean or the last token. Neither the
    query nor the teacher's full states get gradients.

    Args:
        layers: Layers whose states are aligned; None for those of `sizes_ladder(model)`.
        dims: Ascending dims, the last of which is the full dim D, the teacher; None for those of
            the ladder.
        gammas: One share of the tokens for each dim below D, not descending; None for even steps
            from 0.2 to 0.7 (A.5).
        weight: Weight of the term.
        attention_temperature: Temperature of both attention distributions. The default is ours:
            with the paper's 0.05 (Table 7), the teacher would put all its weight on CLS.

    Attributes:
        P: The matrices P_i (d_i, D) of Eq. 5, keyed by dim as text and shared by all layers; used
            only in training.

    Raises:
        ValueError: When the loss is built: layers or dims are outside the model, the term already
            belongs to a loss, or the model's embedding is not its pooled token states.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> from st_matryoshka2d.losses import MultiSizeLoss
        >>> sia = SIA(layers=[2, 6], dims=[32, 384])
        >>> loss = MultiSizeLoss(model, MultipleNegativesRankingLoss(model), ["2L-32d", "6L-384d"], terms=[sia])
        >>> sia.P["32"].shape
        torch.Size([32, 384])
    """

    observes = 2
    uses_raw = True

    def __init__(
        self,
        layers: Sequence[int] | None = None,
        dims: Sequence[int] | None = None,
        gammas: Sequence[float] | None = None,
        weight: float = 1.0,
        attention_temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.asked = (layers, dims, gammas)
        self.weight = positive(weight, "weight", zero=True)
        self.attention_temperature = positive(attention_temperature, "attention_temperature")

    def attach(self, model: SentenceTransformer) -> None:
        """Check layers and dims against the model, and create P."""
        if hasattr(self, "P"):
            raise UsageError("This SIA already belongs to a loss and holds its parameters. Create one per loss.")
        _require_pooled_tokens(model)
        full, ladder = full_size(model), sizes_ladder(model)
        layers, dims, gammas = self.asked
        layers = [size.num_layers for size in ladder] if layers is None else layers
        self.layers = all_within(layers, full.num_layers, "num_layers")
        self.dims = ascending_dims([size.dim for size in ladder] if dims is None else dims, full.dim)
        gammas = np.linspace(0.2, 0.7, len(self.dims) - 1).round(9).tolist() if gammas is None else gammas
        self.gammas = _checked_gammas(gammas, self.dims)
        copying = torch.eye(self.dims[-2], full.dim, device=model.device)
        self.P = nn.ParameterDict([(str(dim), nn.Parameter(copying[:dim].clone())) for dim in self.dims[:-1]])

    def layers_observed(self) -> set[int]:
        """Return the aligned layers."""
        return set(self.layers)

    def observe(self, tokens: Mapping[int, Tokens]) -> Float[Tensor, "batch 2"]:
        """Return the two losses of each text, summed over layers and dims."""
        mask = next(iter(tokens.values())).mask
        lengths = mask.sum(dim=1)
        counts = torch.stack([torch.minimum(lengths, _share(lengths, gamma).clamp(min=8)) for gamma in self.gammas])
        most = max(8, _share(mask.shape[1], self.gammas[-1]))
        by_layer: list[Tensor] = []
        # half precision loses relations of close states
        with torch.autocast(mask.device.type, enabled=False):
            for layer in tokens.values():
                query = at_least_float32(prefix(layer.pooled.detach(), self.dims[-1]))
                states, size = _centred(at_least_float32(prefix(layer.states, self.dims[-1])), mask)
                attention, scores = self._attention_divergence(states, mask, query)
                by_layer.append(torch.stack([attention, _cka_loss(states, size, scores, self.dims, counts, most)], dim=1))
        return torch.stack(by_layer).sum(dim=0)

    def forward(self, step: Step) -> dict[str, Tensor]:
        """Return the weighted means over the texts of all columns: `sia_attention` and `sia_cka`."""
        attention, cka = self.weight * torch.cat(step.observed[self]).mean(dim=0)
        return {"sia_attention": attention, "sia_cka": cka}

    def get_config_dict(self) -> dict[str, object]:
        """Settings for the model card."""
        settings = ("layers", "dims", "gammas", "weight", "attention_temperature")
        return {f"sia_{name}": getattr(self, name) for name in settings}

    def _attention_divergence(
        self,
        states: Float[Tensor, "batch tokens hidden"],
        mask: Bool[Tensor, "batch tokens"],
        query: Float[Tensor, "batch hidden"],
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch tokens"]]:
        """Return the divergence of the prefixes' attention from the full states', and the teacher's scores (Eq. 4-6)."""
        # Sum over prefixes i and tokens j of a_i^j (log a_i^j - log a_D^j). Eq. 5 up-projects every
        # token, h_cls . P_i^T h_j[:d_i]. Projecting the query instead, (P_i h_cls) . h_j[:d_i],
        # gives the same for a fraction of the work.
        scale = math.sqrt(states.shape[-1]) * self.attention_temperature
        floor, widest = torch.finfo(states.dtype).min, self.dims[-2]
        teacher = ((states.detach() @ query.unsqueeze(-1)).squeeze(-1) / scale).masked_fill(~mask, floor)
        queries = [F.pad(query @ p.to(query.dtype).T, (0, widest - len(p))) for p in self.P.values()]
        student = torch.stack(queries, dim=1) @ states[..., :widest].transpose(1, 2) / scale
        padding = ~mask.unsqueeze(1)
        log_student = student.masked_fill(padding, floor).log_softmax(dim=-1)
        log_teacher = teacher.log_softmax(dim=-1).unsqueeze(1)
        difference = (log_student - log_teacher).masked_fill(padding, 0.0)
        return (log_student.exp() * difference).sum(dim=(1, 2)), teacher


def ascending_dims(dims: Sequence[int], full: int) -> list[int]:
    """Check that dims ascend to the full dim."""
    checked = all_within(dims, full, "dim")
    if checked[-1] != full or len(checked) < 2 or any(left >= right for left, right in pairwise(checked)):
        raise UsageError(f"dims must ascend and end with the full dim {full}, with at least one below it, got {checked}.")
    return checked


def _checked_gammas(gammas: Sequence[float], dims: list[int]) -> list[float]:
    checked = [positive(gamma, "each of gammas") for gamma in gammas]
    if len(checked) != len(dims) - 1:
        raise UsageError(f"gammas needs {len(dims) - 1} values, one for each dim below {dims[-1]}, got {len(checked)}.")
    if checked != sorted(checked) or checked[-1] > 1:
        raise UsageError(f"gammas must be shares of the tokens, up to 1 and not descending, got {checked}.")
    return checked


def _require_pooled_tokens(model: SentenceTransformer) -> None:
    for name, route in Pipeline.of(model).routes.items():
        head = list(route.without_normalize().head.values())
        pooling = next(iter(head), None)
        mixing = [module for module in head[1:] if not isinstance(module, Dropout)]
        hidden = route.transformer.get_embedding_dimension()
        if not isinstance(pooling, Pooling) or mixing or pooling.get_embedding_dimension() != hidden:
            raise UsageError(
                "SIA relates prefixes of token states to prefixes of the embedding, so the embedding must be the pooled "
                f"token states; this pipeline{f' (route {name})' if name else ''} makes it with "
                f"{[type(module).__name__ for module in route.head.values()]}. Leave SIA out (`sia=False` in MIPICLoss)."
            )


def _centred(
    states: Float[Tensor, "batch tokens hidden"], mask: Bool[Tensor, "batch tokens"]
) -> tuple[Float[Tensor, "batch tokens hidden"], Float[Tensor, "batch 1 1"]]:
    """Return token states minus their mean over the text, and their root mean square before that."""
    # Attention and CKA ignore a shift of all tokens, but a large one would round small differences
    # away.
    with torch.no_grad():
        inside = states * mask.unsqueeze(-1)
        count = mask.sum(dim=1).clamp(min=1).view(-1, 1, 1)
        mean = inside.sum(dim=1, keepdim=True) / count
        size = (inside.square().sum(dim=(1, 2), keepdim=True) / (count * states.shape[-1])).sqrt()
    return states - mean, size.clamp(min=torch.finfo(states.dtype).tiny)


def _share(tokens: Count, gamma: float) -> Count:
    """Return ceil(gamma m) for m tokens, or for each of several m."""
    # On the device, because reading m would wait for it; in whole numbers, because 0.56 * 25 is a
    # little above 14 in binary. gamma is rounded, which may add half a billionth a token: less than
    # `tokens` takes away.
    unit = 10**9
    return (tokens * round(gamma * unit) + unit - 1 - tokens) // unit


def _cka_loss(
    states: Float[Tensor, "batch tokens hidden"],
    size: Float[Tensor, "batch 1 1"],
    scores: Float[Tensor, "batch tokens"],
    dims: Sequence[int],
    counts: Int[Tensor, "prefixes batch"],
    most: int,
) -> Float[Tensor, " batch"]:
    """Return 1 - CKA between the most attended tokens in prefixes and in full states, summed over prefixes (Eq. 7-12)."""
    # Sum over prefixes i of 1 - <K_i, K_D> / (|K_i| |K_D|), with K the Gram matrices of the kept
    # tokens, centred over them. This equals Eq. 11, with matrices of k x k instead of D x D. Each
    # Gram matrix adds its new coordinates to the previous prefix's. Texts of one token, or of equal
    # ones, have no loss.
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :most]
    chosen = states.gather(1, order.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
    # (prefixes, batch, most)
    is_kept = torch.arange(order.shape[1], device=states.device) < counts.unsqueeze(-1)
    chosen = chosen * (is_kept[-1].unsqueeze(-1) / size)
    blocks = chosen.tensor_split(list(dims[:-1]), dim=-1)
    grams = torch.stack([block @ block.transpose(1, 2) for block in blocks]).cumsum(dim=0)
    student, teacher = _centred_gram(grams[:-1], is_kept), _centred_gram(grams[-1:].detach(), is_kept)
    student_square, teacher_square = student.square().sum(dim=(2, 3)), teacher.square().sum(dim=(2, 3))
    rounding = torch.stack([dim * count for dim, count in zip(dims[:-1], counts, strict=True)]) * _CONSTANT**2
    has_geometry = torch.minimum(student_square, teacher_square) > rounding.square()
    norm = torch.where(has_geometry, student_square, 1.0).sqrt() * torch.where(has_geometry, teacher_square, 1.0).sqrt()
    cka = (student * teacher).sum(dim=(2, 3)) / norm
    return torch.where(has_geometry, 1 - cka, 0.0).sum(dim=0)


def _centred_gram(
    gram: Float[Tensor, "#prefixes batch kept kept"], is_kept: Bool[Tensor, "prefixes batch kept"]
) -> Float[Tensor, "prefixes batch kept kept"]:
    """Return each prefix's Gram matrix of its kept tokens, centred over them (Eq. 8)."""
    weights = is_kept.to(gram.dtype)
    share = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1)
    rows = gram @ share.unsqueeze(-1)
    mean = share.unsqueeze(-2) @ rows
    return (gram - rows - rows.transpose(2, 3) + mean) * (weights.unsqueeze(-1) * weights.unsqueeze(-2))
