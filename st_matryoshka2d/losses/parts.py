"""What a loss returns: its parts, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook

__all__ = ["Parts"]


class Parts(dict[str, Tensor]):
    """Named parts that sum to a loss: sentence-transformers' Trainer adds them up and logs each.

    A training loop that expects one number, as `old_fit` does, calls `backward`.
    """

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Back-propagate from the sum."""
        torch.stack(list(self.values())).sum().backward(*args, **kwargs)

    def when_trained(self, call: Callable[[], None]) -> None:
        """Call a function in each backward pass that reaches a part."""
        if parts := [part for part in self.values() if part.requires_grad]:
            register_multi_grad_hook(parts, lambda _: call(), mode="any")
