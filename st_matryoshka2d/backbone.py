"""Find the blocks of a Hugging Face model, and cut it in depth. The only file that knows model families.

It knows them by structure, not by name: the blocks are the one `ModuleList` with as many entries as the config has layers,
and the tail is the modules that turn the last block's output into the model's output (the final norm of pre-norm families,
nothing in post-norm ones). Unknown structures are refused; `verify.py` checks the known ones.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from st_matryoshka2d.config_metadata import cut_config, kept_layers

Copied = TypeVar("Copied", bound=nn.Module)

_CAPTURING = "transformers.utils.output_capturing"

# Transformers registers what a class can record when its first model is built. A process that only unpickles models, such
# as a worker, builds none, and would get no states.
_BUILT_HERE: set[type[PreTrainedModel]] = set()


@dataclass(frozen=True)
class Backbone:
    """The layers of a model: how many blocks a forward pass runs, and the dotted paths of modules."""

    num_layers: int
    blocks: str | None  # the list of blocks; None if one block is run `num_layers` times (ALBERT), as only the config shows
    tail: tuple[str, ...]  # the modules between the last block and the model's output, in order of use

    def blocks_of(self, model: PreTrainedModel) -> list[nn.Module]:
        """List the blocks in order; none if one block is repeated."""
        return [] if self.blocks is None else list(model.get_submodule(self.blocks).children())

    def finish(self, model: PreTrainedModel, state: Tensor) -> Tensor:
        """Turn the raw state after a block into the output of the model cut there; both are (batch, tokens, hidden)."""
        for path in self.tail:
            state = model.get_submodule(path)(state)
        return state


def find_backbone(model: nn.Module) -> Backbone:
    """Find the blocks and the tail of a model."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"Only a transformers PreTrainedModel can be cut, got {type(model).__name__}. Merge a PEFT wrapper first "
            "(`model[0].model = model[0].model.merge_and_unload()`); load ONNX or OpenVINO models with backend='torch'."
        )
    num_layers = getattr(model.config, "num_hidden_layers", None)
    if isinstance(num_layers, bool) or not isinstance(num_layers, int) or num_layers < 1:
        raise refusal(model, f"Its config has no usable `num_hidden_layers` (found {num_layers!r}).")
    blocks = _find_blocks(model, num_layers)
    return Backbone(num_layers, blocks, _find_tail(model, blocks))


def shallow_view(model: PreTrainedModel, backbone: Backbone, num_layers: int) -> PreTrainedModel:
    """Return the model with the blocks of a depth only; it shares the parameters, so training it trains them."""
    # Containers are copied, so that the view can have fewer blocks and a config of its own; parameters, buffers and leaf
    # modules are shared, no tensor is made, and the model itself does not change.
    config = cut_config(model.config, num_layers)
    kept = kept_layers(model.config, num_layers)
    copies: dict[int, nn.Module] = {}

    def copy_container(module: nn.Module, path: str, position: int | None = None) -> nn.Module:
        if id(module) in copies or not module._modules:
            return copies.get(id(module), module)
        container = copies[id(module)] = copy.copy(module)
        # Transformers installs hooks when the states of a model are first requested. They must not pile up on the model
        # through a view, and a cut with them cannot be pickled, which encoding with several processes needs.
        hooks = {key: hook for key, hook in module._forward_hooks.items() if getattr(hook, "__module__", None) != _CAPTURING}
        container._forward_hooks = OrderedDict(hooks)
        container.__dict__.pop("_output_capturing_hooks_installed", None)
        if getattr(module, "config", None) is model.config:
            vars(container)["config"] = config
        if position is not None and hasattr(container, "layer_idx"):
            vars(container)["layer_idx"] = position  # a decoder's cache has one entry for each layer that is left
        if path == backbone.blocks:
            every = list(module.children())
            blocks = {str(place): every[layer] for place, layer in enumerate(kept)}
            container._modules = {name: copy_container(block, f"{path}.{name}", int(name)) for name, block in blocks.items()}
        else:
            container._modules = {
                name: None if child is None else copy_container(child, f"{path}.{name}".lstrip("."), position)
                for name, child in module._modules.items()
            }
        return container

    view = copy_container(model, "")
    if not isinstance(view, PreTrainedModel):
        raise TypeError(f"{type(model).__name__} copied itself into a {type(view).__name__}.")
    return view


def skeleton(cls: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model from its config alone; its parameters take no memory, its buffers are real."""
    with no_init_weights(), init_empty_weights(include_buffers=False):
        built: PreTrainedModel = cls(config)
    return built


@contextmanager
def hidden_states(model: PreTrainedModel) -> Iterator[None]:
    """Make the model return the state after every block, within this context."""
    if type(model) not in _BUILT_HERE:
        skeleton(type(model), model.config)
        _BUILT_HERE.add(type(model))
    before = model.config.output_hidden_states
    model.config.output_hidden_states = True
    try:
        yield
    finally:
        model.config.output_hidden_states = before


def _find_blocks(model: PreTrainedModel, num_layers: int) -> str | None:
    lengths = {path: len(module) for path, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    found: list[str] = [path for path, length in lengths.items() if length == num_layers]
    outermost = [path for path in found if not any(path.startswith(f"{other}.") for other in found)]
    if len(outermost) == 1:
        return outermost[0]
    if not found and set(lengths.values()) == {1}:
        return None
    raise refusal(
        model,
        f"Looked for one ModuleList of {num_layers} blocks (config.num_hidden_layers), found {len(outermost)}: {outermost}; "
        f"all its lists: {lengths}.",
    )


def _find_tail(model: PreTrainedModel, blocks: str | None) -> tuple[str, ...]:
    """Follow the last block's output through the modules beside the block list until it is the model's output."""
    if blocks is None or model.config.num_hidden_layers == 1:
        return ()  # one block for all layers has no tail to find; with one layer there is no other state to finish
    steps = blocks.split(".")
    ancestors = [".".join(steps[:depth]) for depth in range(len(steps))]
    beside = {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if path not in (*ancestors, blocks) and path.rpartition(".")[0] in ancestors
    }
    calls: list[tuple[str, Any, Any]] = []

    def record(path: str) -> Any:
        return lambda module, args, output: calls.append((path, args[0] if args else None, output))

    *_, last = model.get_submodule(blocks).children()
    try:
        with probing(model) as inputs, ExitStack() as hooks:
            for path, module in [(blocks, last), *beside.items()]:
                hooks.enter_context(module.register_forward_hook(record(path)))
            goal = model(**inputs).last_hidden_state
    except Exception as error:
        raise refusal(model, f"It failed on a few test tokens. {type(error).__name__}: {error}") from error
    reached: Any = None
    tail: list[str] = []
    for path, given, output in calls:
        if path == blocks:
            reached, tail = output[0] if isinstance(output, tuple) else output, []
        elif reached is not None and given is reached and (reached is not goal or output is goal):
            reached = output  # a dropout after the norm changes nothing here, but it does in training
            tail.append(path)
    if not isinstance(reached, Tensor) or not same(reached, goal):
        raise refusal(
            model, f"Looked for modules that turn the output of {blocks}[-1] into its output, found {tail or 'none'}."
        )
    return tuple(tail)


@contextmanager
def probing(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Inputs for a short run (two rows, one padded) in evaluation mode; restore modes and random states."""
    modes = {module: module.training for module in model.modules()}
    words: Any = model.get_input_embeddings()
    vocabulary, device = words.weight.shape[0], words.weight.device
    input_ids = torch.arange(3, 19, device=device).view(2, 8) % vocabulary
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 5:] = 0
    try:
        model.train(False)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield {"input_ids": input_ids, "attention_mask": attention_mask}
    finally:
        for module, mode in modes.items():
            module.training = mode


def same(left: Tensor, right: Tensor, tolerance: float = 0.0) -> bool:
    """Compare within a share of the largest value; NaN equals NaN, so that broken weights do not look like a new family."""
    scale = torch.nan_to_num(right).abs().max()
    return left.shape == right.shape and torch.allclose(left, right, rtol=0.0, atol=tolerance * float(scale), equal_nan=True)


def share_memory(module: Copied) -> Copied:
    """Copy a module but share its tensors; changes of the copy's dtype, device or mode do not affect the original."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in module.parameters()}
    memo.update({id(b): b.detach() for b in module.buffers()})
    for part in module.modules():  # a hook that is a bound method keeps reporting to its object, not to a copy of it
        memo.update({id(hook): hook for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())})
    return copy.deepcopy(module, memo)


def refusal(model: nn.Module, reason: str) -> ValueError:
    """Build the error for a model that cannot be cut in depth."""
    return ValueError(f"{type(model).__name__} cannot be cut in depth exactly, so it is not cut at all. {reason}")
