"""MIPIC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentence_transformers import SentenceTransformer
from torch import nn

from st_matryoshka2d.losses.checks import positive, trainable_size
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.losses.pic import PIC
from st_matryoshka2d.losses.sampling import FixedSizes
from st_matryoshka2d.losses.sia import SIA, ascending_dims
from st_matryoshka2d.losses.step import Term
from st_matryoshka2d.sizes import Size, ladder_to

_GAMMAS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # A.5, for 16, 32, 64, 128, 256, 512

# A.5: layers, the dims of the checkpoints, the full dim; Table 7: alpha.
_PRESETS = {
    "tinybert-6l": ((1, 2, 3, 4, 5, 6), (16, 32, 64, 256, 512, 768), 768, 0.4),
    "bert-base": ((2, 4, 6, 8, 9, 10, 12), (16, 32, 64, 128, 256, 512, 768), 768, 0.4),
    "bge-m3": ((1, 4, 7, 11, 15, 19, 24), (16, 32, 64, 128, 256, 512, 1024), 1024, 0.5),
    "qwen3-0.6b": ((2, 6, 12, 16, 20, 24, 28), (16, 32, 64, 128, 256, 512, 1024), 1024, 0.5),
}


class MIPICLoss(MultiSizeLoss):
    r"""MIPIC: matryoshka dims, token relations kept by prefixes, and a chain from shallow to deep (MIPIC, Eq. 18).

    .. math:: L = \alpha L_{MRL} + (1 - \alpha) (L_{SIA} + L_{PIC})

    with L_MRL the sum of the wrapped loss over the dims of the last layer (Eq. 1), and the terms `SIA` (Eq. 4-14) and `PIC`
    (Eq. 15-17). The choice for very small dims. The paper trains without labels: two columns of the same texts, for
    `MultipleNegativesRankingLoss`, whose embeddings dropout makes differ (SimCSE). Its settings (Table 7): learning rate
    2e-5, batch 16, five epochs, cosine schedule, temperature 0.05 (the wrapped loss's `scale=20`), at most 256 tokens.

    Args:
        model: The model to train, whose embedding is its pooled token states, normalised or not.
        loss: The wrapped loss, built on the same model.
        layers: Layers of SIA; None for the preset of the model's depth and width, else those of `sizes_ladder(model)`.
        checkpoints: Of PIC; None likewise. The full dim at each is Table 4's "all dim equal".
        dims: Of MRL and SIA, ascending, the last is the full dim; None likewise.
        gammas: SIA's shares of the tokens, one for each dim below the full one; None likewise, else from 0.2 to 0.7.
        alpha: Weight of MRL, above 0, at most 1.
        temperature: Of PIC.
        attention_temperature: Of SIA.
        sia: False for Table 3's "w/o SIA".
        pic: False for Table 3's "w/o PIC".
        mini_batch_size: Texts embedded at once with gradient caching; None for no caching.
        mini_batch_num_tokens: Tokens embedded at once, instead of texts, with gradient caching too.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> loss = MIPICLoss(model, MultipleNegativesRankingLoss(model))
        >>> list(loss.P), len(loss.phi)
        (['16', '32', '64', '128', '256'], 5)
        >>> MIPICLoss.preset("bert-base")["layers"]
        [2, 4, 6, 8, 9, 10, 12]
    """

    task_name = "mrl"

    citation = """
@misc{gia2026mipic,
    title={{MIPIC}: Matryoshka Representation Learning via Self-Distilled Intra-Relational
           and Progressive Information Chaining},
    author={Phung Gia Huy and Hai An Vu and Minh-Phuc Truong and Thang Duc Tran
            and Linh Ngo Van and Thanh Nguyen and Trung Le},
    year={2026}
}
"""

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module,
        layers: Sequence[int] | None = None,
        checkpoints: Sequence[Size | str] | None = None,
        dims: Sequence[int] | None = None,
        gammas: Sequence[float] | None = None,
        alpha: float = 0.4,
        temperature: float = 0.05,
        attention_temperature: float = 1.0,
        sia: bool = True,
        pic: bool = True,
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
    ) -> None:
        full = trainable_size(model)
        if positive(alpha, "alpha") > 1:
            raise ValueError(f"alpha shares the loss between MRL and the rest, so it is at most 1, got {alpha}.")
        # Of a model with one of the paper's shapes; for another the terms take the ladder.
        names = [name for name, (depths, _, width, _) in _PRESETS.items() if full == Size(depths[-1], width)]
        default = MIPICLoss.preset(names[0]) if names else {}
        if dims is None:
            dims = default.get("dims", [size.dim for size in ladder_to(full)])
        dims = ascending_dims(dims, full.dim)
        if gammas is None and dims == default.get("dims"):
            gammas = default["gammas"]
        terms: list[Term] = []
        if sia and alpha < 1:
            layers = default.get("layers") if layers is None else layers
            terms.append(SIA(layers, dims, gammas, 1 - alpha, attention_temperature))
        if pic and alpha < 1:
            terms.append(PIC(default.get("checkpoints") if checkpoints is None else checkpoints, 1 - alpha, temperature))
        sizes = [Size(full.num_layers, dim) for dim in dims]
        mrl = FixedSizes(sizes, full, [alpha] * len(sizes), reduction="sum")
        super().__init__(model, loss, mrl, terms, None, mini_batch_size, mini_batch_num_tokens)

    @staticmethod
    def preset(name: str) -> dict[str, Any]:
        """Keywords of this class as the paper sets them for one of its models (Table 7, section A.5).

        Args:
            name: `"tinybert-6l"`, `"bert-base"`, `"bge-m3"` or `"qwen3-0.6b"`; another is a ValueError.
        """
        if str(name).lower() not in _PRESETS:
            raise ValueError(f"There are presets for {', '.join(_PRESETS)}, not for {name!r}.")
        layers, narrow, full, alpha = _PRESETS[name.lower()]
        return {
            "layers": list(layers),
            "checkpoints": [Size(layer, dim) for layer, dim in zip(layers, narrow, strict=True)],
            "dims": [16, 32, 64, 128, 256, 512, full],
            "gammas": list(_GAMMAS),
            "alpha": alpha,
            "temperature": 0.05,
        }

    @property
    def P(self) -> nn.ParameterDict:  # noqa: N802 - the paper's letter
        """SIA's projections P_i, (d_i, D), by dim as text; not in the saved model, in checkpoints by `LossStateCallback`."""
        return next((term.P for term in self.terms if isinstance(term, SIA)), nn.ParameterDict())

    @property
    def phi(self) -> nn.ModuleList:
        """PIC's projectors, from each checkpoint to the next; saved as `P` is."""
        return next((term.phi for term in self.terms if isinstance(term, PIC)), nn.ModuleList())
