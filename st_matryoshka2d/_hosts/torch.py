"""What torch keeps of modules under private names."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

Container = TypeVar("Container", bound=nn.Module)

COMPILED = "_orig_mod"  # where the wrapper of `torch.compile` keeps the module


def parts(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the modules directly inside a module by name; a place that a family leaves empty has None."""
    return dict(module._modules)


def around(container: Container, modules: Mapping[str, nn.Module | None]) -> Container:
    """Copy a container, its settings and its mode, around other modules; tensors are shared, and nothing is called."""
    made = copy.copy(container)
    made._modules = dict(modules)
    return made


def put(container: nn.Module, name: str, module: nn.Module | None) -> None:
    """Put a module, or none, in a place of a container."""
    container._modules[name] = module


def put_tensors(container: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors in the places of parameters of a copied module; those that were computed from others train these."""
    container._parameters = {**container._parameters, **tensors}  # type: ignore[dict-item]  # computed ones are no parameters


def hooks(module: nn.Module) -> list[Callable[..., Any]]:
    """List the functions that are called before and after a module."""
    return [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]


def call_before(module: nn.Module, function: Callable[..., Any]) -> None:
    """Let a function be called before a module, in place of one of its kind; copies of the module stay as they are."""
    others = {key: hook for key, hook in module._forward_pre_hooks.items() if type(hook) is not type(function)}
    module._forward_pre_hooks = OrderedDict(others)
    module.register_forward_pre_hook(function)


def is_saved(module: nn.Module, buffer: str) -> bool:
    """Tell whether a buffer of a module is in its state dict."""
    return buffer not in module._non_persistent_buffers_set
