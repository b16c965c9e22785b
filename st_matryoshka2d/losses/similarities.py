"""Similarities between the texts of a batch, as the wrapped loss compares them, and their divergence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import torch
from sentence_transformers import util
from sentence_transformers.sentence_transformer.losses import SiameseDistanceMetric, TripletDistanceMetric
from torch import Tensor, nn
from torch.nn import functional as F

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.losses.distributed import gather, own_rows

if TYPE_CHECKING:
    from jaxtyping import Float

Similarity = Callable[[Tensor, Tensor], Tensor]

# Matrix forms of pairwise similarities. Angles have none that search would use, so they map to
# cosine.
_MATRIX_FORM: dict[object, Similarity] = {
    util.pairwise_cos_sim: util.cos_sim,
    util.pairwise_dot_score: util.dot_score,
    util.pairwise_euclidean_sim: util.euclidean_sim,
    util.pairwise_manhattan_sim: util.manhattan_sim,
    util.pairwise_angle_sim: util.cos_sim,
    TripletDistanceMetric.COSINE: util.cos_sim,
    TripletDistanceMetric.EUCLIDEAN: util.euclidean_sim,
    TripletDistanceMetric.MANHATTAN: util.manhattan_sim,
    SiameseDistanceMetric.COSINE_DISTANCE: util.cos_sim,
    SiameseDistanceMetric.EUCLIDEAN: util.euclidean_sim,
    SiameseDistanceMetric.MANHATTAN: util.manhattan_sim,
}


def matrix_similarity(loss: nn.Module) -> Similarity:
    """Return the wrapped loss's similarity between all rows of two batches; cosine if it has none."""
    own: Any = getattr(loss, "similarity_fct", None) or getattr(loss, "distance_metric", None)
    if own in _MATRIX_FORM:
        return _MATRIX_FORM[own]
    with suppress(RuntimeError, TypeError, ValueError):
        if callable(own) and own(torch.eye(3, 4), torch.eye(2, 4)).shape == (3, 2):
            return cast(Similarity, own)
    if not callable(own) or not hasattr(loss, "similarity_fct"):
        return util.cos_sim
    raise UsageError(
        f"{type(loss).__name__} compares pairs with {getattr(own, '__name__', own)!r}, which cannot compare all rows of "
        "two batches. Give the loss one of sentence-transformers' similarities, or pass kl_over='embedding'."
    )


def score_logits(
    columns: list[Float[Tensor, "batch dim"]], similarity: Similarity, gathered: bool = False
) -> Float[Tensor, "batch candidates"]:
    """Compare the first column's texts with all texts of the other columns; a single column's with each other."""
    texts, *others = columns
    if not others:
        return scores_of_others(texts, texts, similarity, gathered)
    return at_least_float32(similarity(texts, torch.cat([gather(column, gathered) for column in others])))


def scores_of_others(
    texts: Float[Tensor, "batch dim"], candidates: Float[Tensor, "batch dim"], similarity: Similarity, gathered: bool = False
) -> Float[Tensor, "batch others"]:
    """Compare each text with all candidates except its own row."""
    scores = at_least_float32(similarity(texts, gather(candidates, gathered)))
    others = torch.arange(scores.shape[1] - 1, device=scores.device)
    # A mask of booleans would select the same, but wait for the GPU.
    return scores.gather(1, others + (others >= own_rows(texts, gathered).unsqueeze(1)))


def kl_divergence(student: Float[Tensor, "batch n"], teacher: Float[Tensor, "batch n"], temperature: float) -> Tensor:
    r"""Return the KL divergence of two softmaxes, :math:`\sum t (\log t - \log s)`, mean over rows."""
    log_student = F.log_softmax(student / temperature, dim=-1)
    log_teacher = F.log_softmax(teacher.detach() / temperature, dim=-1)
    return F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision, which loses divergences of close distributions."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
