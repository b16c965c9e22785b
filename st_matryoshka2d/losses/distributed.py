"""Training on several processes, each with part of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.util import all_gather_with_grad, get_rank, is_dist_initialized
from torch import Tensor, distributed, nn

from st_matryoshka2d.model.pipeline import routes_of, unwrap

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def gather(rows: Float[Tensor, "batch width"], gathered: bool = True) -> Float[Tensor, "world width"]:
    """Gather the rows of all processes in order of rank; gradients flow back to the process of each row."""
    return all_gather_with_grad(rows.contiguous()) if gathered and is_dist_initialized() else rows


def own_rows(rows: Tensor, gathered: bool) -> Int[Tensor, " batch"]:
    """Return the positions of these rows among the gathered ones; all processes have equally many."""
    return torch.arange(len(rows), device=rows.device) + (get_rank() * len(rows) if gathered else 0)


def average_gradient(gradient: Tensor) -> Tensor:
    """Average over the processes: a hook for a loss's parameters, which `DistributedDataParallel` does not see."""
    if not is_dist_initialized():
        return gradient
    mean = gradient.contiguous() / distributed.get_world_size()
    distributed.all_reduce(mean)
    return mean


@contextmanager
def reaching_heads(model: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """Let `DistributedDataParallel` find parameters after the Transformer, even if depths of the step skip them."""
    # It searches the graph of the model's output, at full depth. Other depths are computed later:
    # parameters used only there would be reported twice, and those used only by depths outside the
    # step would be awaited forever. Apply the yielded function to everything computed from the
    # outputs, so that the backward pass reaches these parameters.
    routes = routes_of(unwrap(model)).values() if is_dist_initialized() else ()
    trained = [p for route in routes for module in route.head.values() for p in module.parameters() if p.requires_grad]
    if not trained:
        yield lambda values: values
        return

    def reach(values: Tensor) -> Tensor:
        reached: Tensor = _Reach.apply(values, *trained)  # type: ignore[no-untyped-call]
        return reached

    def reach_outputs(_: nn.Module, __: object, outputs: dict[str, Any]) -> dict[str, Any]:
        return {**outputs, "sentence_embedding": reach(outputs["sentence_embedding"])}

    with unwrap(model).register_forward_hook(reach_outputs):
        yield reach


class _Reach(torch.autograd.Function):
    """Identity without gradients for the parameters: with zeros, an optimizer would still move them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, *parameters: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.parameters = len(parameters)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *gradients, *[None] * ctx.parameters
