"""Recipes: the papers, and one of our own, as compositions of one engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sentence_transformers import SentenceTransformer
from torch import nn

from st_matryoshka2d.layers import transformer_of
from st_matryoshka2d.losses.alignment import KLAlignment
from st_matryoshka2d.losses.checks import finite_weights
from st_matryoshka2d.losses.distillation import NoTask, RelationalDistill
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.losses.sampling import UniformSizes
from st_matryoshka2d.sizes import Size, full_size, mrl_dims, sizes_ladder

__all__ = ["RelationalDistillLoss", "StarbucksLoss", "TwoDMSELoss"]


class StarbucksLoss(MultiSizeLoss):
    r"""Starbucks Representation Learning: a fixed ladder of sizes, each trained in every step (Starbucks, Eq. 4 and 5).

    .. math::
        L = \frac{1}{|S|} \sum_{(n,d) \in S} loss(v_n^d) + \frac{\lambda}{|S|} \sum_{(n,d) \in S} KLDiv(s_n^d; s_N^D)

    The usual choice when the sizes to be shipped are known. In the paper it matches separately trained models at every
    size. Trained with Table 5's settings there: learning rate 5e-5, batch 128, one epoch, linear schedule, warm-up 0.1.

    Args:
        model: The model to train.
        loss: The wrapped loss, built on the same model; the paper uses MultipleNegativesRankingLoss.
        sizes: S; None for `sizes_ladder(model)`, the paper's list for any depth and width.
        size_weights: One factor per size; None for 1 each.
        kl_weight: Lambda; the paper has 1. Zero leaves the alignment out.
        kl_temperature: Of both softmaxes; 0.3 in Table 5.
        kl_over: `"scores"`: over similarities to the batch's candidates, the paper; `"embedding"`: over coordinates.
        mini_batch_size: Texts embedded at once with gradient caching; None for no caching.

    Inputs:
        The columns and labels that the wrapped loss takes.

    References:
        - Starbucks: Improved Training for 2D Matryoshka Embeddings, https://arxiv.org/abs/2410.13230

    Example:
        >>> from sentence_transformers import SentenceTransformerTrainer
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> loss = StarbucksLoss(model, MultipleNegativesRankingLoss(model))
        >>> trainer = SentenceTransformerTrainer(model=model, train_dataset=triplets, loss=loss)
    """

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module,
        sizes: Sequence[Size] | None = None,
        size_weights: Sequence[float] | None = None,
        kl_weight: float = 1.0,
        kl_temperature: float = 0.3,
        kl_over: Literal["scores", "embedding"] = "scores",
        mini_batch_size: int | None = None,
    ) -> None:
        transformer_of(model)
        super().__init__(
            model,
            loss,
            sizes=sizes_ladder(model) if sizes is None else sizes,
            terms=[KLAlignment(kl_weight, kl_temperature, kl_over, teacher="full", reduction="mean")],
            size_weights=size_weights,
            mini_batch_size=mini_batch_size,
        )

    @property
    def citation(self) -> str:
        """BibTeX of the paper."""
        return """
@misc{zhuang2024starbucks,
    title={Starbucks: Improved Training for 2D Matryoshka Embeddings},
    author={Shengyao Zhuang and Shuai Wang and Bevan Koopman and Guido Zuccon},
    year={2024},
    eprint={2410.13230},
    archivePrefix={arXiv}
}
"""


class TwoDMSELoss(MultiSizeLoss):
    r"""2D Matryoshka Sentence Embeddings: a random shallower layer and a random smaller dim per step (2DMSE, Eq. 2-7).

    .. math::
        L = \lambda_1 L_N^D + \lambda_2 L_n^D + \lambda_3 L_N^d + \lambda_4 L_n^d
            + \lambda_5 [KLDiv(n, D; N, D) + KLDiv(n, d; N, d)]

    with n uniform over 1..N-1 and d uniform over 8, 16, 32, ... below D. Every (layer, dim) is trained, each only now and
    then: the choice when the size is not known yet.

    Args:
        model: The model to train; more than one layer.
        loss: The wrapped loss, built on the same model; the paper uses AnglELoss.
        dims: Dims to draw d from; None for 8, 16, 32, ... below D (section 3.2).
        weights: The five lambdas. `(1, 1, 1, 1, 0)` is Table 2's ablation without alignment, `(0, 1, 1, 1, 1)` the one
            without the last layer.
        kl_temperature: Of both softmaxes.
        kl_over: `"scores"`: over similarities to the batch's candidates; `"embedding"`: over coordinates, the authors' code.
        mini_batch_size: Texts embedded at once with gradient caching; None for no caching.

    Inputs:
        The columns and labels that the wrapped loss takes.

    References:
        - 2D Matryoshka Sentence Embeddings, https://arxiv.org/abs/2402.14776v1

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import AnglELoss
        >>> loss = TwoDMSELoss(model, AnglELoss(model))
        >>> loss.get_config_dict()["dims"]
        [8, 16, 32, 64, 128, 256]
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
    ) -> None:
        transformer_of(model)
        full = full_size(model)
        *task_weights, kl_weight = finite_weights(weights, 5, "weights")
        super().__init__(
            model,
            loss,
            sizes=UniformSizes(full, mrl_dims(full.dim) if dims is None else dims, task_weights),
            terms=[KLAlignment(kl_weight, kl_temperature, kl_over, teacher="last_layer", reduction="sum")],
            mini_batch_size=mini_batch_size,
        )

    @property
    def citation(self) -> str:
        """BibTeX of the paper."""
        return """
@misc{li20242d,
    title={2D Matryoshka Sentence Embeddings},
    author={Xianming Li and Zongxi Li and Jing Li and Haoran Xie and Qing Li},
    year={2024},
    eprint={2402.14776},
    archivePrefix={arXiv}
}
"""


class RelationalDistillLoss(MultiSizeLoss):
    r"""Make an existing embedding model elastic from raw text, without labels: each size learns from the model as it starts.

    .. math::
        L = \frac{1}{|S|} \sum_{(n,d) \in S} \frac{1}{B} \sum_{i=1}^{B} KLDiv(s_i^{n,d}; t_i), \quad
        t_i = softmax_{j \ne i}(\cos(z_i, z_j) / \tau)

    with t from the frozen teacher's full embeddings of all texts of the batch and s from the student's at (n, d). The full
    size stays what it was, and small sizes come close to it: the quickest way in for a model that is already good. To add
    it to a task with labels, pass `RelationalDistill()` as a term to `MultiSizeLoss`.

    Args:
        model: The model to train.
        teacher: None: the model as it is when the loss is built. A `SentenceTransformer` of any width and with any
            tokenizer. `"labels"`: the label column holds the teacher's embeddings.
        sizes: S; None for `sizes_ladder(model)`.
        temperature: Of both softmaxes, in units of cosine similarity.
        mini_batch_size: Texts embedded at once, with gradient caching; None for no caching.

    Inputs:
        One or more text columns; no labels, but for `teacher="labels"`.

    Example:
        >>> from datasets import Dataset
        >>> from sentence_transformers import SentenceTransformerTrainer
        >>> dataset = Dataset.from_dict({"text": ["a cat", "a dog", "it rains", "it snows"]})
        >>> trainer = SentenceTransformerTrainer(model=model, train_dataset=dataset, loss=RelationalDistillLoss(model))
    """

    def __init__(
        self,
        model: SentenceTransformer,
        teacher: SentenceTransformer | Literal["labels"] | None = None,
        sizes: Sequence[Size] | None = None,
        temperature: float = 0.05,
        mini_batch_size: int | None = None,
    ) -> None:
        transformer_of(model)
        super().__init__(
            model,
            NoTask(),
            sizes=sizes_ladder(model) if sizes is None else sizes,
            terms=[RelationalDistill(teacher, temperature=temperature, mini_batch_size=mini_batch_size)],
            mini_batch_size=mini_batch_size,
        )
