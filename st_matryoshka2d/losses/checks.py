"""Checks before a gradient step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from numbers import Real
from typing import TypeVar

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses import uses_gradient_cache
from sentence_transformers.sentence_transformer import losses
from torch import Tensor, nn

from st_matryoshka2d._hosts.sentence_transformers import is_cut_by_adaptive_layer_loss
from st_matryoshka2d.errors import UsageError, UsageTypeError, warn
from st_matryoshka2d.model.pipeline import Pipeline, unwrap
from st_matryoshka2d.model.readout import token_table
from st_matryoshka2d.sizes import Size, positive_int

Choice = TypeVar("Choice", bound=str)

# Inputs of sentence-transformers' losses: text columns (least, most), and whether labels. Several
# losses silently ignore extra columns, and report missing labels only as an error on None.
_READS: dict[type[nn.Module], tuple[int, int | None, bool]] = {
    losses.AnglELoss: (2, None, False),
    losses.CoSENTLoss: (2, 2, True),
    losses.CosineSimilarityLoss: (2, 2, True),
    losses.ContrastiveLoss: (2, 2, True),
    losses.OnlineContrastiveLoss: (2, 2, True),
    losses.TripletLoss: (3, 3, False),
    losses.MultipleNegativesRankingLoss: (2, None, False),
    losses.MarginMSELoss: (3, None, True),
    losses.DistillKLDivLoss: (3, None, True),
    losses.EmbedDistillLoss: (1, None, True),
    losses.BatchAllTripletLoss: (1, 1, True),
    losses.BatchHardTripletLoss: (1, 1, True),
}


def trainable_size(model: SentenceTransformer) -> Size:
    """Return the full size of a model; raise if it has no layers to choose from."""
    return Pipeline.of(model).full


def check_wrapped_loss(loss: nn.Module, model: SentenceTransformer) -> None:
    """Check that a loss can be computed from embeddings, and trains this model."""
    name = type(loss).__name__
    if not isinstance(loss, nn.Module):
        raise UsageTypeError(f"loss must be a sentence-transformers loss such as CoSENTLoss(model), got {loss!r}.")
    if uses_gradient_cache(loss) and name.startswith("Cached"):
        plain = name.removeprefix("Cached")
        raise UsageTypeError(
            f"{name} embeds texts by itself. Wrap {plain} and pass mini_batch_size=... here for gradient caching."
        )
    if not callable(getattr(loss, "compute_loss_from_embeddings", None)):
        raise UsageTypeError(
            f"{name} cannot be wrapped: it has no `compute_loss_from_embeddings`, so it cannot be computed at several "
            "sizes from one forward pass. MultipleNegativesRankingLoss, CoSENTLoss, AnglELoss and most other losses can."
        )
    its_model = getattr(loss, "model", None)
    if isinstance(its_model, nn.Module) and unwrap(its_model) is not model:
        raise UsageError(f"{name} was built on a different model. Build both losses on the same model object.")
    if getattr(loss, "projection", None) is not None:
        raise UsageError(f"{name} has a projection for the full width only. Build it without projection_dim.")


def check_mini_batches(mini_batch_size: int | None, mini_batch_num_tokens: int | None) -> None:
    """Check that mini-batch sizes are positive."""
    for number, name in ((mini_batch_size, "mini_batch_size"), (mini_batch_num_tokens, "mini_batch_num_tokens")):
        if number is not None:
            positive_int(number, name)


def check_not_inside(loss: nn.Module, model: nn.Module) -> None:
    """Raise if another loss has patched the layers of the model."""
    if is_cut_by_adaptive_layer_loss(next(unwrap(model).children())):
        raise inside(loss, "AdaptiveLayerLoss")


def inside(loss: nn.Module, wrapper: str) -> TypeError:
    """Return the error for a loss inside one of sentence-transformers that also chooses sizes."""
    name = type(loss).__name__
    return TypeError(
        f"{name} cannot be inside {wrapper}, because it trains layers and dims itself. Pass it to the Trainer directly; "
        "its own arguments choose the sizes."
    )


def warn_of_untrained(name: str, pipeline: Pipeline, sizes: Collection[Size]) -> None:
    """Warn of what a loss does not train, and training changes."""
    if (full := pipeline.full) not in sizes:
        warn(
            f"{name} does not train the full size, {full}: the whole model may get worse. Add it to the sizes, or ship only "
            "cuts of the trained sizes."
        )
    if token_table(pipeline.model) is not None:
        warn(
            f"{name} does not train the token table, and training moves the whole model away from it. Call `fit_queries` "
            "again afterwards."
        )


def check_columns(loss: nn.Module, count: int, labels: Tensor | None) -> None:
    """Check that a batch has the text columns and the labels that the wrapped loss reads."""
    least, most, labelled = next((_READS[cls] for cls in type(loss).__mro__ if cls in _READS), (1, None, False))
    if labelled and labels is None:
        raise UsageError(f"{type(loss).__name__} needs labels, but the dataset has no column named label, labels or score.")
    if count < least or (most is not None and count > most):
        expected = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        raise UsageError(f"{type(loss).__name__} reads {expected} text columns, the dataset has {count}.")


def check_finite(columns: Iterable[Tensor]) -> None:
    """Raise if embeddings have NaN or infinite values."""
    for index, column in enumerate(columns):
        if bad := int((~torch.isfinite(column)).flatten(1).any(1).sum()):
            raise UsageError(
                f"The model returned NaN or infinite embeddings for {bad} of {len(column)} texts of column {index + 1}. "
                "Check for empty texts, a high learning rate, or float16 weights."
            )


def finite_weights(weights: Sequence[float] | None, count: int, name: str) -> list[float]:
    """Return checked weights as floats; None for 1 each."""
    values = [1.0] * count if weights is None else [float(weight) for weight in weights]
    if len(values) != count:
        raise UsageError(f"{name} needs {count} values, one for each, got {len(values)}.")
    if bad := [value for value in values if not math.isfinite(value) or value < 0]:
        raise UsageError(f"{name} must be finite and not negative, got {bad}.")
    if not any(values):
        raise UsageError(f"{name} are all zero, so nothing would be trained.")
    return values


def positive(value: float, name: str, *, zero: bool = False) -> float:
    """Return a number that is finite and above zero; if `zero`, it may be zero."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageTypeError(f"{name} must be a number, got {value!r}.")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise UsageError(f"{name} must be {'zero or more' if zero else 'above zero'} and finite, got {value}.")
    return float(value)


def one_of(value: Choice, name: str, allowed: tuple[str, ...]) -> Choice:
    """Return a value that is one of the allowed words."""
    if value not in allowed:
        raise UsageError(f"{name} must be one of {allowed}, got {value!r}.")
    return value
