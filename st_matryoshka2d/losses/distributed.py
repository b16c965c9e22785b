"""Several processes, each with a part of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from sentence_transformers.util import all_gather_with_grad, get_rank, is_dist_initialized
from torch import Tensor, distributed, nn

from st_matryoshka2d.layers import routes_of, unwrap


def gather(rows: Float[Tensor, "batch width"]) -> Float[Tensor, "world width"]:
    """The rows of all processes, process after process; gradients flow back to where each row came from."""
    return all_gather_with_grad(rows.contiguous()) if is_dist_initialized() else rows


def own_rows(rows: Tensor, gathered: bool) -> Int[Tensor, " batch"]:
    """Where these rows are among the gathered ones; each process has as many."""
    return torch.arange(len(rows), device=rows.device) + (get_rank() * len(rows) if gathered else 0)


def average_gradient(gradient: Tensor) -> Tensor:
    """Mean over the processes: a hook for parameters of a loss, which `DistributedDataParallel` does not know."""
    if not is_dist_initialized():
        return gradient
    mean = gradient.contiguous() / distributed.get_world_size()
    distributed.all_reduce(mean)
    return mean


@contextmanager
def reaching_heads(model: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """Let `DistributedDataParallel` find what is trained after the Transformer, even if a depth of the step skips it."""
    # It looks for parameters in the graph of what the model returns, at full depth. Other depths are computed from that
    # later, and what only they use would be reported twice; what only depths not in the step use would be awaited in vain.
    # What is yielded must be applied to everything made of the outputs, so that the backward pass reaches these parameters.
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

    handle = unwrap(model).register_forward_hook(reach_outputs)
    try:
        yield reach
    finally:
        handle.remove()


class _Reach(torch.autograd.Function):
    """The values as they are; backward, no gradient for the parameters: one of zeros would have an optimizer move them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, *parameters: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.parameters = len(parameters)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *gradients, *[None] * ctx.parameters
