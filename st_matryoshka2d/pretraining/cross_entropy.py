"""Cross entropy over a vocabulary without all logits in memory.

torch 2.13 has `linear_cross_entropy`, but to return a value for each row it computes the logits
twice, and autocast does not reach it: float32 states stay in float32.

Gradients are computed in the forward pass, per chunk of logits: of all tensors as wide as the
vocabulary, only the gradient of the weight is kept for the backward pass, and no logit is computed
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# Logits in memory at a time: 2^24 numbers are 64 MiB in float32. Smaller chunks make matrix
# products slower.
_LOGITS_AT_A_TIME = 2**24


def vocabulary_cross_entropy(
    states: Float[Tensor, "rows hidden"],
    weight: Float[Tensor, "vocabulary hidden"],
    bias: Float[Tensor, " vocabulary"] | None,
    targets: Int[Tensor, " rows"],
    row_weights: Float[Tensor, " rows"],
) -> tuple[Tensor, Float[Tensor, " rows"]]:
    """Return the sum of w_r CE(softmax(states @ weight.T + bias)_r, target_r), and each row's CE without gradient."""
    apply: Any = _ChunkedCrossEntropy.apply
    total, by_row = apply(states, weight, bias, targets, row_weights, torch.is_grad_enabled())
    return total, by_row


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, row_weights: Tensor, trains: bool
    ) -> tuple[Tensor, Tensor]:
        device = states.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        # Half precision has too few digits for a sum over a vocabulary.
        high = torch.promote_types(low, torch.float32)
        wanted = [trains and needed for needed in ctx.needs_input_grad[:3]]
        # Scale weights to at most 1 here, and back in `backward`: half precision would round small
        # ones to zero.
        relative = (row_weights / row_weights.max()).to(high)[:, None]
        by_row = torch.empty(len(states), dtype=high, device=states.device)
        d_states = torch.empty(states.shape, dtype=low, device=states.device) if wanted[0] else None
        d_weight = torch.zeros(weight.shape, dtype=high, device=states.device) if wanted[1] else None
        d_bias = torch.zeros(len(weight), dtype=high, device=states.device) if wanted[2] else None
        with torch.autocast(device, enabled=False):
            of_states, of_weight = states.to(low), weight.to(low)
            step = max(1, _LOGITS_AT_A_TIME // len(weight))
            for start in range(0, len(states), step):
                rows = slice(start, start + step)
                logits = (of_states[rows] @ of_weight.T).to(high)
                if bias is not None:
                    logits += bias
                normalizer = logits.logsumexp(1, keepdim=True)
                by_row[rows] = (normalizer - logits.gather(1, targets[rows, None])).squeeze(1)
                if not any(wanted):
                    continue
                # In place, logits become their gradient: softmax - one-hot.
                d_logits = logits.sub_(normalizer).exp_()
                d_logits.scatter_add_(1, targets[rows, None], d_logits.new_full((len(d_logits), 1), -1.0))
                if d_states is not None:
                    d_states[rows] = d_logits.to(low) @ of_weight
                d_logits *= relative[rows]
                if d_weight is not None:
                    _add_product(d_weight, d_logits.to(low).T, of_states[rows])
                if d_bias is not None:
                    d_bias += d_logits.sum(0)
        ctx.save_for_backward(d_states, d_weight, d_bias, row_weights)
        ctx.dtypes = states.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(by_row)
        return (by_row * row_weights).sum(), by_row

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *ready, row_weights = ctx.saved_tensors
        by_row, together = (row_weights * d_total)[:, None], row_weights.max() * d_total
        factors = by_row, together, together
        gradients = [
            None if gradient is None else (gradient * factor).to(dtype)
            for gradient, factor, dtype in zip(ready, factors, ctx.dtypes, strict=True)
        ]
        return *gradients, None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
