"""Relational distillation, a recipe of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sentence_transformers import SentenceTransformer

from st_matryoshka2d.layers import routes_of
from st_matryoshka2d.losses.distillation import NoTask, RelationalDistill
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.sizes import Size, sizes_ladder

__all__ = ["RelationalDistillLoss"]


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
        gather_across_devices: Whether texts are compared with those of all processes.

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
        gather_across_devices: bool = False,
    ) -> None:
        routes_of(model)
        super().__init__(
            model,
            NoTask(gather_across_devices),
            sizes=sizes_ladder(model) if sizes is None else sizes,
            terms=[RelationalDistill(teacher, temperature=temperature, mini_batch_size=mini_batch_size)],
            mini_batch_size=mini_batch_size,
        )

    @property
    def signature(self) -> str:
        """This class alone: it wraps no loss."""
        return type(self).__name__
