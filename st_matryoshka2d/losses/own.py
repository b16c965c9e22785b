"""What a loss trains besides the model: projections that only training needs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from torch import nn

__all__ = ["own_parameters", "warn_of_unsaved"]


def own_parameters(loss: nn.Module) -> dict[str, nn.Parameter]:
    """What a loss trains besides the model, by name."""
    model = getattr(loss, "model", None)
    of_model = {id(parameter) for parameter in model.parameters()} if isinstance(model, nn.Module) else set()
    return {
        name: parameter
        for name, parameter in loss.named_parameters()
        if parameter.requires_grad and id(parameter) not in of_model
    }


def warn_of_unsaved(loss: str, names: Iterable[str]) -> None:
    """Warn that a Trainer's checkpoint lacks what the loss trains besides the model."""
    first, *others = names
    warnings.warn(
        f"{loss} trains {1 + len(others)} tensors of its own (such as {first}), which a Trainer's checkpoint does not hold: "
        "a resumed training would start them from scratch. Pass callbacks=[LossStateCallback(loss)] to the Trainer.",
        stacklevel=3,
    )
