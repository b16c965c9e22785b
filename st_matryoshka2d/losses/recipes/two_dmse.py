"""2D Matryoshka Sentence Embeddings, and Espresso, the paper's second version, with its compression as a term."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from st_matryoshka2d.dims import prefix
from st_matryoshka2d.losses.checks import finite_weights, positive, trainable_size
from st_matryoshka2d.losses.distributed import gather
from st_matryoshka2d.losses.kl_alignment import KLAlignment
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.losses.sampling import FixedSizes, UniformSizes
from st_matryoshka2d.losses.step import Step, Term
from st_matryoshka2d.similarity import at_least_float32, kl_divergence
from st_matryoshka2d.sizes import Size, mrl_dims, within


class TwoDMSELoss(MultiSizeLoss):
    r"""2D Matryoshka Sentence Embeddings: a random shallower layer and a random smaller dim per step (2DMSE, Eq. 2-7).

    .. math::
        L = \lambda_1 L_N^D + \lambda_2 L_n^D + \lambda_3 L_N^d + \lambda_4 L_n^d
            + \lambda_5 [KLDiv(n, D; N, D) + KLDiv(n, d; N, d)]

    n is uniform over 1..N-1 and d over 8, 16, 32, ... below D (https://arxiv.org/abs/2402.14776v1). Every (layer, dim) is
    trained, but each only now and then: choose it when the size is not known yet. Evaluation draws nothing; its loss is the
    mean over every n and d.

    Args:
        model: The model to train, of more than one layer.
        loss: The wrapped loss, built on the same model. The authors' objective is the sum of a cosine term, an in-batch term
            and an angle term, which `docs/training.md` builds from CoSENTLoss, MultipleNegativesRankingLoss and AnglELoss.
        dims: Dims to draw d from; None for 8, 16, 32, ... below D (section 3.2).
        weights: The five lambdas. Table 2 has `(1, 1, 1, 1, 0)`, no alignment, and `(0, 1, 1, 1, 1)`, no last layer.
        kl_temperature: Temperature of both softmaxes.
        kl_over: `"scores"`: over similarities to the batch's candidates; `"embedding"`: over coordinates (authors' code).
        mini_batch_size: Texts per mini-batch of gradient caching; None disables caching.
        mini_batch_num_tokens: Tokens per mini-batch, instead of texts; also enables gradient caching.

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
    ) -> None:
        full = trainable_size(model)
        *task_weights, kl_weight = finite_weights(weights, 5, "weights")
        sizes = UniformSizes(full, mrl_dims(full.dim) if dims is None else dims, task_weights)
        kl = KLAlignment(kl_weight, kl_temperature, kl_over, teacher="last_layer", reduction="sum")
        super().__init__(model, loss, sizes, [kl], None, mini_batch_size, mini_batch_num_tokens)


class PCACompression(Term):
    r"""Pull the first coordinates of each trained size towards a PCA compression of the whole embedding (Espresso).

    .. math:: \sum_{(n,d) \in S,\, d < D} w_{n,d}\, [MSE(E_n[:, :d], T) + KLDiv(E_n[:, :d]; T)], \quad T = E_n U_d S_d

    w are the weights of the step's sizes, E the embeddings of one text column before any normalisation; KLDiv is over their
    coordinates. Text columns are averaged. T gets no gradient. The authors' code uses a random low-rank decomposition.

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
    # A = U S V^T = softmax(E^T E / sqrt(D)). The eigenvectors of A A^T, in double precision, give U and S like an exact SVD,
    # in half the time. Each column of U has its entry of largest magnitude made positive, or the target would flip.
    texts = seen.to("cpu" if seen.device.type == "mps" else seen.device, torch.float64)  # Apple's GPUs have no double
    attention = torch.softmax(texts.T @ texts / texts.shape[1] ** 0.5, dim=-1)
    squares, vectors = torch.linalg.eigh(attention @ attention.T)  # ascending
    vectors = vectors[:, -dim:].flip(1)
    signs = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)).sign()
    directions: Tensor = vectors * signs * squares[-dim:].flip(0).clamp(min=0).sqrt()
    return directions


class EspressoLoss(MultiSizeLoss):
    r"""Espresso: learn to express at every layer, learn to compress into one prefix (https://arxiv.org/abs/2402.14776v2).

    .. math::
        L = loss(v_N^D) + loss(v_N^k) + c(N) + \frac{1}{N-1} \sum_{i=1}^{N-1} \frac{loss(v_i^k) + c(i)}{1 + \ln i}

    Each step trains every layer at one compressed dim k, shallow layers with more weight; c(i) pulls the first k
    coordinates of layer i towards a PCA compression of its whole embedding (`PCACompression`). Choose it to ship one dim at
    several depths. The authors' code counts layers from the embedding layer and uses a random decomposition.

    Args:
        model: The model to train, of more than one layer.
        loss: The wrapped loss, built on the same model.
        compress_dim: k, below the full dim D; None for 128, or D / 4 if D is at most 128.
        compress_weight: Weight of every c; 0 disables the compression.
        mini_batch_size: Texts per mini-batch of gradient caching; None disables caching.
        mini_batch_num_tokens: Tokens per mini-batch, instead of texts; also enables gradient caching.

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
    ) -> None:
        full = trainable_size(model)
        if full.num_layers < 2 or full.dim < 2:
            raise ValueError(f"Espresso trains layers and dims below the full ones; the model is {full}.")
        default = 128 if full.dim > 128 else max(full.dim // 4, 1)
        k = default if compress_dim is None else within(compress_dim, full.dim, "compress_dim")
        if k == full.dim:
            raise ValueError(f"compress_dim={k} is not below the full {full.dim}, which is always trained.")
        shallow = {Size(i, k): 1 / ((full.num_layers - 1) * (1 + math.log(i))) for i in range(1, full.num_layers)}
        weights = {full: 1.0, Size(full.num_layers, k): 1.0, **shallow}
        sizes = FixedSizes(list(weights), full, list(weights.values()), reduction="sum")
        compress = PCACompression(positive(compress_weight, "compress_weight", zero=True))
        super().__init__(model, loss, sizes, [compress], None, mini_batch_size, mini_batch_num_tokens)
