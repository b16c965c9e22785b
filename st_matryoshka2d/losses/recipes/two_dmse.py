"""2D Matryoshka Sentence Embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sentence_transformers import SentenceTransformer
from torch import nn

from st_matryoshka2d.losses.checks import finite_weights, trainable_size
from st_matryoshka2d.losses.kl_alignment import KLAlignment
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.losses.sampling import UniformSizes
from st_matryoshka2d.model.layers import Choice
from st_matryoshka2d.sizes import mrl_dims


class TwoDMSELoss(MultiSizeLoss):
    r"""2D Matryoshka Sentence Embeddings: a random shallower layer and a random smaller dim per step (2DMSE, Eq. 2-7).

    .. math::
        L = \lambda_1 L_N^D + \lambda_2 L_n^D + \lambda_3 L_N^d + \lambda_4 L_n^d
            + \lambda_5 [KLDiv(n, D; N, D) + KLDiv(n, d; N, d)]

    n is uniform over 1..N-1 and d over 8, 16, 32, ... below D (https://arxiv.org/abs/2402.14776v1).
    Every (layer, dim) is trained, but each only now and then: choose it when the size is not known
    yet. Evaluation draws nothing; its loss is the mean over every n and d.

    In the authors' code, the losses of layer n are divided by n. Its KL compares coordinates, at
    the full dim only and at temperature 1, and trains its teacher too; `kl_over="embedding"`
    compares coordinates at both dims.

    Args:
        model: The model to train, of more than one layer.
        loss: The wrapped loss, built on the same model. The authors' objective is the sum of a
            cosine term, an in-batch term and an angle term, which `docs/training_measured.md` builds from
            CoSENTLoss, MultipleNegativesRankingLoss and AnglELoss.
        dims: Dims to draw d from; None for 8, 16, 32, ... below D (section 3.2).
        weights: The five lambdas. Table 2 has `(1, 1, 1, 1, 0)`, no alignment, and `(0, 1, 1, 1,
            1)`, no last layer.
        kl_temperature: Temperature of both softmaxes.
        kl_over: `"scores"`: over similarities to the batch's candidates; `"embedding"`: over
            coordinates (authors' code).
        mini_batch_size: Texts per mini-batch of gradient caching; None disables caching.
        mini_batch_num_tokens: Tokens per mini-batch, instead of texts; also enables gradient
            caching.
        layers: Which layers each depth keeps, as for `MultiSizeLoss`; `"first"` in the paper.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import AnglELoss
        >>> loss = TwoDMSELoss(model, AnglELoss(model))
        >>> loss.get_config_dict()["dims"]
        [8, 16, 32, 64, 128, 256]
    """

    citation = """
@misc{li20242d,
    title={2D Matryoshka Sentence Embeddings},
    author={Xianming Li and Zongxi Li and Jing Li and Haoran Xie and Qing Li},
    year={2024},
    eprint={2402.14776v1},
    archivePrefix={arXiv}
}
"""

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module,
        dims: Sequence[int] | None = None,
        weights: Sequence[float] = (1, 1, 1, 1, 1),
        kl_temperature: float = 0.3,
        kl_over: Literal["scores", "embedding"] = "scores",
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
        layers: Choice | None = None,
    ) -> None:
        full = trainable_size(model)
        *task_weights, kl_weight = finite_weights(weights, 5, "weights")
        sizes = UniformSizes(full, mrl_dims(full.dim) if dims is None else dims, task_weights)
        kl = KLAlignment(kl_weight, kl_temperature, kl_over, teacher="last_layer", reduction="sum")
        super().__init__(model, loss, sizes, [kl], None, mini_batch_size, mini_batch_num_tokens, layers)
