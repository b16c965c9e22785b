"""Starbucks Representation Learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sentence_transformers import SentenceTransformer
from torch import nn

from st_matryoshka2d.losses.checks import trainable_size
from st_matryoshka2d.losses.kl_alignment import KLAlignment
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.model.layers import Choice
from st_matryoshka2d.sizes import Size, ladder_to


class StarbucksLoss(MultiSizeLoss):
    r"""Starbucks Representation Learning: a fixed ladder of sizes, each trained in every step (Starbucks, Eq. 4 and 5).

    .. math::
        L = \frac{1}{|S|} \sum_{(n,d) \in S} loss(v_n^d) + \frac{\lambda}{|S|} \sum_{(n,d) \in S} KLDiv(s_n^d; s_N^D)

    The usual choice when the sizes to ship are known. Paper settings
    (https://arxiv.org/abs/2410.13230, Table 5): learning rate 5e-5, batch 128, one epoch, linear
    schedule, warm-up 0.1.

    The authors' code for sentence pairs adds the sizes up instead of averaging them. Its KL
    compares coordinates at temperature 1, with 0.3 as a factor, and trains its teacher too. A
    `MultiSizeLoss` of `FixedSizes(..., reduction="sum")` and `KLAlignment(0.3, 1.0, "embedding",
    reduction="sum")` has the same value. Their code for search adds up too, and compares scores at
    the temperature of the wrapped loss.

    Args:
        model: The model to train.
        loss: The wrapped loss, built on the same model; the paper uses
            MultipleNegativesRankingLoss.
        sizes: S, as `Size` or text such as `"6L-128d"`; None for `sizes_ladder(model)`, the paper's
            list.
        size_weights: One factor per size; None for 1 each.
        kl_weight: Lambda, 1 in the paper; 0 disables alignment.
        kl_temperature: Temperature of both softmaxes, 0.3 in Table 5.
        kl_over: `"scores"`: softmax over similarities to the batch's candidates (paper);
            `"embedding"`: over coordinates.
        mini_batch_size: Texts per mini-batch of gradient caching; None disables caching.
        mini_batch_num_tokens: Tokens per mini-batch, instead of texts; also enables gradient
            caching.
        layers: Which layers each depth keeps, as for `MultiSizeLoss`; `"first"` in the paper.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> loss = StarbucksLoss(model, MultipleNegativesRankingLoss(model))
        >>> loss.get_config_dict()["sizes"]
        ['1L-16d', '2L-32d', '3L-64d', '4L-128d', '5L-256d', '6L-384d']
    """

    citation = """
@misc{zhuang2024starbucks,
    title={Starbucks: Improved Training for 2D Matryoshka Embeddings},
    author={Shengyao Zhuang and Shuai Wang and Bevan Koopman and Guido Zuccon},
    year={2024},
    eprint={2410.13230},
    archivePrefix={arXiv}
}
"""

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module,
        sizes: Sequence[Size | str] | None = None,
        size_weights: Sequence[float] | None = None,
        kl_weight: float = 1.0,
        kl_temperature: float = 0.3,
        kl_over: Literal["scores", "embedding"] = "scores",
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
        layers: Choice | None = None,
    ) -> None:
        sizes = ladder_to(trainable_size(model)) if sizes is None else sizes
        kl = KLAlignment(kl_weight, kl_temperature, kl_over, teacher="full", reduction="mean")
        super().__init__(model, loss, sizes, [kl], size_weights, mini_batch_size, mini_batch_num_tokens, layers)
