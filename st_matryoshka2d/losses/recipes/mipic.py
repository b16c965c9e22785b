"""MIPIC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentence_transformers import SentenceTransformer
from torch import nn

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.losses.checks import positive, trainable_size
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.losses.pic import PIC
from st_matryoshka2d.losses.sampling import FixedSizes
from st_matryoshka2d.losses.sia import SIA, ascending_dims
from st_matryoshka2d.losses.step import Term
from st_matryoshka2d.model.layers import Choice
from st_matryoshka2d.sizes import Size, ladder_to

# A.5: layers, the dims of the checkpoints, the full dim; Table 7: alpha.
_PRESETS = {
    "tinybert-6l": ((1, 2, 3, 4, 5, 6), (16, 32, 64, 256, 512, 768), 768, 0.4),
    "bert-base": ((2, 4, 6, 8, 9, 10, 12), (16, 32, 64, 128, 256, 512, 768), 768, 0.4),
    "bge-m3": ((1, 4, 7, 11, 15, 19, 24), (16, 32, 64, 128, 256, 512, 1024), 1024, 0.5),
    "qwen3-0.6b": ((2, 6, 12, 16, 20, 24, 28), (16, 32, 64, 128, 256, 512, 1024), 1024, 0.5),
}


class MIPICLoss(MultiSizeLoss):
    r"""MIPIC: matryoshka dims, prefixes that keep token relations, and a chain from shallow to deep (Eq. 18).

    .. math:: L = \alpha L_{MRL} + (1 - \alpha) (L_{SIA} + L_{PIC})

    L_MRL is the sum of the wrapped loss over the dims of the last layer (Eq. 1); the terms are
    `SIA` (Eq. 4-14) and `PIC` (Eq. 15-17). Choose it for very small dims. The paper trains without
    labels, like SimCSE: `MultipleNegativesRankingLoss` on two columns of the same texts, which
    differ by dropout. Its settings (Table 7): learning rate 2e-5, batch 16, five epochs, cosine
    schedule, temperature 0.05 (the wrapped loss's `scale=20`), at most 256 tokens. On a model that
    is good already, keep this rate: 100 steps on pairs of questions cost the full size of
    all-MiniLM-L6-v2 0.2 points of STS-B, and 1.7 at the Trainer's 5e-5.

    Args:
        model: The model to train. Its embedding must be its pooled token states, normalised or not.
        loss: The wrapped loss, built on the same model.
        layers: Layers of SIA; None for the preset of the model's depth and width, else those of
            `sizes_ladder(model)`.
        checkpoints: Checkpoints of PIC; same default. Full dims give Table 4's "all dim equal".
        dims: Dims of MRL and SIA, ascending to the full dim; same default.
        gammas: SIA's share of the tokens for each dim below the full one; None for the preset, else
            from 0.2 to 0.7.
        alpha: Weight of MRL, above 0 and at most 1; None for the preset (Table 7), else 0.4.
        temperature: Temperature of PIC.
        attention_temperature: Temperature of SIA.
        sia: False leaves out SIA (Table 3).
        pic: False leaves out PIC (Table 3).
        mini_batch_size: Texts per mini-batch of gradient caching; None disables caching.
        mini_batch_num_tokens: Tokens per mini-batch, instead of texts; also enables gradient
            caching.
        kept_layers: Which layers each depth keeps, as `layers` of `MultiSizeLoss`; `"first"` in the
            paper.

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
        alpha: float | None = None,
        temperature: float = 0.05,
        attention_temperature: float = 1.0,
        sia: bool = True,
        pic: bool = True,
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
        kept_layers: Choice | None = None,
    ) -> None:
        full = trainable_size(model)
        # Models of the paper's shapes have presets; for others the terms use the ladder.
        names = [name for name, (depths, _, width, _) in _PRESETS.items() if full == Size(depths[-1], width)]
        default = MIPICLoss.preset(names[0]) if names else {}
        alpha = default.get("alpha", 0.4) if alpha is None else positive(alpha, "alpha")
        if alpha > 1:
            raise UsageError(f"alpha must be at most 1, as 1 - alpha weighs SIA and PIC; got {alpha}.")
        if dims is None:
            dims = default.get("dims", [size.dim for size in ladder_to(full)])
        dims = ascending_dims(dims, full.dim)
        terms: list[Term] = []
        if sia and alpha < 1:
            layers = default.get("layers") if layers is None else layers
            terms.append(SIA(layers, dims, gammas, 1 - alpha, attention_temperature))
        if pic and alpha < 1:
            terms.append(PIC(default.get("checkpoints") if checkpoints is None else checkpoints, 1 - alpha, temperature))
        sizes = [Size(full.num_layers, dim) for dim in dims]
        mrl = FixedSizes(sizes, full, [alpha] * len(sizes), reduction="sum")
        super().__init__(model, loss, mrl, terms, None, mini_batch_size, mini_batch_num_tokens, kept_layers)

    @staticmethod
    def preset(name: str) -> dict[str, Any]:
        """Return the paper's settings for one of its models, as keywords of this class (Table 7, section A.5).

        Train with the paper's rate as well, `learning_rate=2e-5`, or a model that is good already
        gets worse.

        Args:
            name: `"tinybert-6l"`, `"bert-base"`, `"bge-m3"` or `"qwen3-0.6b"`; others raise
                ValueError.
        """
        if str(name).lower() not in _PRESETS:
            raise UsageError(f"There are presets for {', '.join(_PRESETS)}, not for {name!r}.")
        layers, narrow, full, alpha = _PRESETS[name.lower()]
        return {
            "layers": list(layers),
            "checkpoints": [Size(layer, dim) for layer, dim in zip(layers, narrow, strict=True)],
            "dims": [16, 32, 64, 128, 256, 512, full],
            "gammas": [0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
            "alpha": alpha,
            "temperature": 0.05,
        }

    @property
    def P(self) -> nn.ParameterDict:  # noqa: N802 - the paper's letter
        """SIA's projections P_i, (d_i, D), keyed by dim as text; saved only in checkpoints, by `LossStateCallback`."""
        return next((term.P for term in self.terms if isinstance(term, SIA)), nn.ParameterDict())

    @property
    def phi(self) -> nn.ModuleList:
        """PIC's projectors, from each checkpoint to the next; saved like `P`."""
        return next((term.phi for term in self.terms if isinstance(term, PIC)), nn.ModuleList())
