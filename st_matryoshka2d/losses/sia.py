"""SIA: every layer's whole token states teach their own prefixes (MIPIC, section 3.2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling
from torch import Tensor, nn

from st_matryoshka2d.dims import prefix
from st_matryoshka2d.layers import routes_of
from st_matryoshka2d.losses.alignment import at_least_float32
from st_matryoshka2d.losses.checks import positive
from st_matryoshka2d.losses.relations import attention_divergence, centred, cka_loss, tokens_kept
from st_matryoshka2d.losses.step import Step, Term, Tokens
from st_matryoshka2d.sizes import all_within, full_size, sizes_ladder

__all__ = ["SIA"]


class SIA(Term):
    r"""Self-distilled intra-relational alignment of token states (MIPIC, Eq. 4-14).

    .. math::
        L = \frac{1}{texts} \sum_{texts} \sum_{layers} \sum_{d_i < D} KL(a_i \| a_D) + 1 - CKA(h[:d_i], h)

    The attention that a prefix pays to the tokens of its text should be that of the whole state, and so should the geometry
    of the tokens that matter most: :math:`k_i = \min(m, \max(8, \lceil \gamma_i m \rceil))` of m. The whole states, as
    teachers, and the query get no gradient. The query is the pooled vector before any normalising: the state of CLS, as in
    the paper, for models that pool so, otherwise the mean or the last token. All tokens of a text take part, CLS and SEP
    included. See `relations.py` for the equations.

    Args:
        layers: Layers whose states are aligned; None for those of `sizes_ladder(model)`.
        dims: Ascending, the last is the full dim D, the teacher; None for those of the ladder.
        gammas: One share of the tokens for each dim below D, not descending; None for even steps from 0.2 to 0.7 (A.5).
        weight: Of the term.
        attention_temperature: Of both attention distributions. Ours: with the 0.05 of the paper's Table 7 the teacher
            would put all its weight on CLS.

    Attributes:
        P: For each dim below D, under the dim as text, the matrix P_i (d_i, D) of Eq. 5. It starts by copying the prefix,
            is shared by all layers, and is needed in training only.

    Raises:
        ValueError: When the loss is built: layers or dims outside the model, a term that another loss holds, or a model
            whose embedding is not its pooled token states, so that prefixes of the two have nothing to do with each other.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> from st_matryoshka2d import Size
        >>> from st_matryoshka2d.losses import MultiSizeLoss
        >>> task = MultipleNegativesRankingLoss(model)
        >>> loss = MultiSizeLoss(model, task, [Size(2, 32), Size(6, 384)], terms=[SIA(layers=[2, 6], dims=[32, 384])])
        >>> loss.terms[0].P["32"].shape
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
        """Check layers and dims against the model, and make P."""
        if hasattr(self, "P"):
            raise ValueError("This SIA already belongs to a loss, whose parameters it holds. Make one for each loss.")
        _require_pooled_tokens(model)
        full, ladder = full_size(model), sizes_ladder(model)
        layers, dims, gammas = self.asked
        layers = [size.num_layers for size in ladder] if layers is None else layers
        self.layers = all_within(layers, full.num_layers, "num_layers")
        self.dims = ascending_dims([size.dim for size in ladder] if dims is None else dims, full.dim)
        gammas = np.linspace(0.2, 0.7, len(self.dims) - 1).tolist() if gammas is None else gammas
        self.gammas = _checked_gammas(gammas, self.dims)
        copying = torch.eye(self.dims[-2], full.dim, device=model.device)
        self.P = nn.ParameterDict(OrderedDict((str(dim), nn.Parameter(copying[:dim].clone())) for dim in self.dims[:-1]))

    def layers_observed(self) -> set[int]:
        """The layers that are aligned."""
        return set(self.layers)

    def observe(self, tokens: Mapping[int, Tokens]) -> Float[Tensor, "batch 2"]:
        """The two losses of each text, summed over layers and dims."""
        mask = next(iter(tokens.values())).mask
        kept = tokens_kept(mask.sum(dim=1).tolist(), self.gammas)
        by_layer: list[Tensor] = []
        with torch.autocast(mask.device.type, enabled=False):  # relations of close states are lost in half precision
            for layer in tokens.values():
                query = at_least_float32(prefix(layer.pooled.detach(), self.dims[-1]))
                states, size = centred(at_least_float32(prefix(layer.states, self.dims[-1])), mask)
                attention, scores = attention_divergence(
                    states, mask, query, list(self.P.values()), self.attention_temperature
                )
                by_layer.append(torch.stack([attention, cka_loss(states, size, scores, self.dims, kept)], dim=1))
        return torch.stack(by_layer).sum(dim=0)

    def forward(self, step: Step) -> dict[str, Tensor]:
        """Weighted means over the texts of all columns: `sia_attention` and `sia_cka`."""
        attention, cka = self.weight * torch.cat(step.observed[self]).mean(dim=0)
        return {"sia_attention": attention, "sia_cka": cka}

    def get_config_dict(self) -> dict[str, object]:
        """Settings, for the model card."""
        return {
            "sia_layers": self.layers,
            "sia_dims": self.dims,
            "sia_gammas": self.gammas,
            "sia_weight": self.weight,
            "sia_attention_temperature": self.attention_temperature,
        }


def ascending_dims(dims: Sequence[int], full: int) -> list[int]:
    """Refuse dims that do not ascend to the full dim."""
    checked = all_within(dims, full, "dim")
    if checked[-1] != full or len(checked) < 2 or any(left >= right for left, right in pairwise(checked)):
        raise ValueError(f"dims must ascend and end with the full dim {full}, with at least one below it, got {checked}.")
    return checked


def _checked_gammas(gammas: Sequence[float], dims: list[int]) -> list[float]:
    if isinstance(gammas, str) or not isinstance(gammas, Iterable):
        raise TypeError(f"gammas must be a list of shares of the tokens, one for each dim below {dims[-1]}, got {gammas!r}.")
    checked = [positive(float(gamma) if isinstance(gamma, np.floating) else gamma, "each of gammas") for gamma in gammas]
    if len(checked) != len(dims) - 1:
        raise ValueError(f"gammas needs {len(dims) - 1} values, one for each dim below {dims[-1]}, got {len(checked)}.")
    if checked != sorted(checked) or checked[-1] > 1:
        raise ValueError(f"gammas are shares of the tokens, up to 1 and not descending, got {checked}.")
    return checked


def _require_pooled_tokens(model: SentenceTransformer) -> None:
    for name, route in routes_of(model).items():
        head = list(route.without_normalize().head.values())
        pooling = next(iter(head), None)
        mixing = [module for module in head[1:] if not isinstance(module, Dropout)]
        hidden = route.transformer.get_embedding_dimension()
        if not isinstance(pooling, Pooling) or mixing or pooling.get_embedding_dimension() != hidden:
            raise ValueError(
                "SIA relates prefixes of token states to prefixes of the embedding, so the embedding must be the pooled "
                f"token states; this pipeline{f' (route {name})' if name else ''} makes it with "
                f"{[type(module).__name__ for module in route.head.values()]}. Leave SIA out (`sia=False` in MIPICLoss)."
            )
