"""Several processes, each with a part of the batch."""

from __future__ import annotations

from collections.abc import Iterable

from jaxtyping import Float
from sentence_transformers.util import all_gather_with_grad
from torch import Tensor, distributed, nn

__all__ = ["average_gradient", "gather", "is_distributed", "own_parameters", "rows_before", "start_alike"]


def is_distributed() -> bool:
    """Whether there is more than this process."""
    return distributed.is_available() and distributed.is_initialized()


def gather(rows: Float[Tensor, "batch width"]) -> Float[Tensor, "world width"]:
    """The rows of all processes, process after process; gradients flow back to where each row came from."""
    if not is_distributed():
        return rows
    gathered: Tensor = all_gather_with_grad(rows.contiguous())
    return gathered


def rows_before(rows: int) -> int:
    """How many of the gathered rows belong to processes before this one, each of which has as many."""
    return distributed.get_rank() * rows if is_distributed() else 0


def average_gradient(gradient: Tensor) -> Tensor:
    """Mean over the processes: a hook for parameters of a loss, which `DistributedDataParallel` does not know."""
    if not is_distributed():
        return gradient
    mean = gradient.contiguous() / distributed.get_world_size()
    distributed.all_reduce(mean)
    return mean


def start_alike(parameters: Iterable[nn.Parameter]) -> None:
    """Give all processes the values of the first one, as `DistributedDataParallel` does for the model."""
    for parameter in parameters:
        distributed.broadcast(parameter.data, src=0)


def own_parameters(loss: nn.Module) -> dict[str, nn.Parameter]:
    """What a loss trains besides the model, by name: projections that only training needs.

    Args:
        loss: A loss with the model it trains in its attribute `model`.
    """
    model = getattr(loss, "model", None)
    of_model = {id(parameter) for parameter in model.parameters()} if isinstance(model, nn.Module) else set()
    return {
        name: parameter
        for name, parameter in loss.named_parameters()
        if parameter.requires_grad and id(parameter) not in of_model
    }
