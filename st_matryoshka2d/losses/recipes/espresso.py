"""Espresso Sentence Embeddings: the second version of the 2DMSE paper."""

from __future__ import annotations

import math

from sentence_transformers import SentenceTransformer
from torch import nn

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.losses.checks import positive, trainable_size
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.losses.pca_compression import PCACompression
from st_matryoshka2d.losses.sampling import FixedSizes
from st_matryoshka2d.model.layers import Choice
from st_matryoshka2d.sizes import Size, within


class EspressoLoss(MultiSizeLoss):
    r"""Espresso: learn to express at every layer, learn to compress into one prefix (https://arxiv.org/abs/2402.14776v2).

    .. math::
        L = loss(v_N^D) + loss(v_N^k) + c(N) + \frac{1}{N-1} \sum_{i=1}^{N-1} \frac{loss(v_i^k) + c(i)}{1 + \ln i}

    Each step trains every layer at one compressed dim k, shallow layers with more weight; c(i)
    pulls the first k coordinates of layer i towards a PCA compression of its whole embedding
    (`PCACompression`). Choose it to ship one dim at several depths. The authors' code counts layers
    from the embedding layer and uses a random decomposition.

    Args:
        model: The model to train, of more than one layer.
        loss: The wrapped loss, built on the same model.
        compress_dim: k, below the full dim D; None for 128, or D / 4 if D is at most 128.
        compress_weight: Weight of every c; 0 disables the compression.
        mini_batch_size: Texts per mini-batch of gradient caching; None disables caching.
        mini_batch_num_tokens: Tokens per mini-batch, instead of texts; also enables gradient
            caching.
        layers: Which layers each depth keeps, as for `MultiSizeLoss`; `"first"` in the paper.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import AnglELoss
        >>> loss = EspressoLoss(model, AnglELoss(model))
        >>> loss.get_config_dict()["sizes"]
        ['6L-384d', '6L-128d', '1L-128d', '2L-128d', '3L-128d', '4L-128d', '5L-128d']
    """

    citation = """
@inproceedings{li2025ese,
    title={{ESE}: Espresso Sentence Embeddings},
    author={Xianming Li and Zongxi Li and Jing Li and Haoran Xie and Qing Li},
    booktitle={The Thirteenth International Conference on Learning Representations},
    year={2025},
    url={https://openreview.net/forum?id=plgLA2YBLH}
}
"""

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module,
        compress_dim: int | None = None,
        compress_weight: float = 1.0,
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
        layers: Choice | None = None,
    ) -> None:
        full = trainable_size(model)
        if full.num_layers < 2 or full.dim < 2:
            raise UsageError(f"Espresso trains layers and dims below the full ones; the model is {full}.")
        default = 128 if full.dim > 128 else max(full.dim // 4, 1)
        k = default if compress_dim is None else within(compress_dim, full.dim, "compress_dim")
        if k == full.dim:
            raise UsageError(f"compress_dim={k} is not below the full {full.dim}, which is always trained.")
        shallow = {Size(i, k): 1 / ((full.num_layers - 1) * (1 + math.log(i))) for i in range(1, full.num_layers)}
        weights = {full: 1.0, Size(full.num_layers, k): 1.0, **shallow}
        sizes = FixedSizes(list(weights), full, list(weights.values()), reduction="sum")
        compress = PCACompression(positive(compress_weight, "compress_weight", zero=True))
        super().__init__(model, loss, sizes, [compress], None, mini_batch_size, mini_batch_num_tokens, layers)
