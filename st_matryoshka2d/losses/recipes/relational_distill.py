"""Relational distillation, a recipe of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.losses.checks import trainable_size
from st_matryoshka2d.losses.distillation import RelationalDistill
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.model.layers import Choice
from st_matryoshka2d.sizes import Size, ladder_to, validate_sizes


class NoTask(nn.Module):
    """A wrapped loss that adds nothing, so that only the terms are trained."""

    def __init__(self, gather_across_devices: bool = False) -> None:
        super().__init__()
        self.gather_across_devices = gather_across_devices

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None) -> dict[str, Tensor]:
        """Return no parts."""
        return {}


class RelationalDistillLoss(MultiSizeLoss):
    r"""Make an existing embedding model elastic from unlabelled text: each size learns from the original model.

    .. math::
        L = \frac{1}{|S|} \sum_{(n,d) \in S} \frac{1}{B} \sum_{i=1}^{B} KLDiv(s_i^{n,d}; t_i), \quad
        t_i = softmax_{j \ne i}(\cos(z_i, z_j) / \tau)

    t comes from the frozen teacher's full embeddings of all texts of the batch, s from the
    student's at (n, d). The full size stays as it was and small sizes come close to it: the
    quickest start for a model that is already good. If there are labels, a wrapped loss can train
    the full size on them: :math:`loss(v_N^D)` is added. The dataset has one or more text columns,
    or those of the wrapped loss. For other mixtures, pass `RelationalDistill()` as a term to
    `MultiSizeLoss`.

    Args:
        model: The model to train.
        teacher: None for the model as it is when the loss is built; a `SentenceTransformer` of any
            width with the model's tokenizer and `max_seq_length`; or `"labels"` if the label column
            holds the embeddings of any teacher.
        sizes: S, as `Size` or text such as `"6L-128d"`; None for `sizes_ladder(model)`.
        temperature: Temperature of both softmaxes, in units of cosine similarity.
        mini_batch_size: Texts per mini-batch of gradient caching; None disables caching.
        gather_across_devices: Whether to compare texts across all processes; a wrapped loss has its
            own setting.
        loss: A wrapped loss for the full size, which must be in S; built on the same model. None
            for no labels.
        mini_batch_num_tokens: Tokens per mini-batch, instead of texts; also enables gradient
            caching.
        across: Weight of a second part, which keeps all sizes in one space; 0 and None as in
            `RelationalDistill`.
        layers: Which layers each depth keeps, as for `MultiSizeLoss`.

    Raises:
        ValueError: A wrapped loss is used with `teacher="labels"`, without the full size in S, or
            with `gather_across_devices=True`; the teacher reads texts in another way than the
            model; or `across` is used with a teacher of another width.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> without_labels = RelationalDistillLoss(model)
        >>> with_labels = RelationalDistillLoss(model, loss=MultipleNegativesRankingLoss(model))
    """

    def __init__(
        self,
        model: SentenceTransformer,
        teacher: SentenceTransformer | Literal["labels"] | None = None,
        sizes: Sequence[Size | str] | None = None,
        temperature: float = 0.05,
        mini_batch_size: int | None = None,
        gather_across_devices: bool = False,
        loss: nn.Module | None = None,
        mini_batch_num_tokens: int | None = None,
        across: float | None = None,
        layers: Choice | None = None,
    ) -> None:
        full = trainable_size(model)
        trained = ladder_to(full) if sizes is None else validate_sizes(sizes, full)
        if loss is not None:
            _check_task(full, trained, teacher, gather_across_devices)
        at_once = mini_batch_size, mini_batch_num_tokens
        distill = RelationalDistill(teacher, 1.0, temperature, *at_once, across)
        task = NoTask(gather_across_devices) if loss is None else loss
        # The engine divides by the number of sizes; this factor makes the full size count once.
        weights = None if loss is None else [float(len(trained) * (size == full)) for size in trained]
        super().__init__(model, task, trained, [distill], weights, *at_once, layers)

    @property
    def signature(self) -> str:
        """Name of this class, and of the wrapped loss if any."""
        return type(self).__name__ if isinstance(self.loss, NoTask) else super().signature


def _check_task(full: Size, sizes: Sequence[Size], teacher: object, gather_across_devices: bool) -> None:
    if teacher == "labels":
        raise UsageError("The label column holds the teacher's embeddings, so there are no labels for `loss`.")
    if full not in sizes:
        raise UsageError(f"`loss` trains the full size, {full}, which is not among the sizes: add it, or leave out `loss`.")
    if gather_across_devices:
        raise UsageError("Pass gather_across_devices=True to the wrapped loss: it also applies to the teacher.")
