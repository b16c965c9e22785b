"""A Hugging Face model: which one can be cut, what is below its head, and what it makes of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.torch import COMPILED
from st_matryoshka2d.errors import UsageTypeError


def require_network(model: object) -> PreTrainedModel:
    """Return a Hugging Face model; refuse others, such as that of another backend."""
    if isinstance(model, PreTrainedModel):
        return model
    refuse_compiled(model)
    way = "Merge the adapter first: `model[0].model = model[0].model.merge_and_unload()`."
    if not hasattr(model, "merge_and_unload"):
        way = "For ONNX or OpenVINO, load the model with backend='torch', cut it, save the cut and export that."
    raise UsageTypeError(f"Only a transformers PreTrainedModel can be cut, got {type(model).__name__}. {way}")


def refuse_compiled(model: object) -> None:
    """Refuse a model that `torch.compile` wrapped, or a part of which, as the wrapper hides what a cut must copy."""
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        wrapper, _, last = path.rpartition(".")
        if last == COMPILED:
            raise UsageTypeError(
                f"{type(module).__name__}{wrapper and f' ({wrapper})'} is wrapped by torch.compile, which hides its parts. "
                f"Unwrap it, with its attribute `{COMPILED}`; or compile in place, with `model.compile()` instead of "
                "`torch.compile(model)`. A cut can be compiled too."
            )


def refusal(model: nn.Module | type[nn.Module], reason: str) -> ValueError:
    """Build the error for a model, or all of its class, that cannot be cut in depth."""
    name = (model if isinstance(model, type) else type(model)).__name__
    return ValueError(f"{name} cannot be cut in depth exactly, so it is not cut at all. {reason}")


def core(model: PreTrainedModel) -> PreTrainedModel:
    """Return the network below a head, such as the classifier of a reranker; the model itself if it has none."""
    below: Any = model.base_model
    network: PreTrainedModel = below
    return network


def made_by(network: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Run a network; return the state after its last layer, and what its head makes of that, if it has one."""
    below = core(network)
    state: Tensor = below(**inputs).last_hidden_state
    return [state] if below is network else [state, network(**inputs).logits]
