"""Find the blocks of a Hugging Face model, and cut it in depth. The only file that knows model families.

It knows them by structure, not by name: the blocks are the one `ModuleList` with as many entries as
the config has layers, and the tail is the modules that turn the last block's output into the
model's output (the final norm of pre-norm families, nothing in post-norm ones). Unknown structures
are refused; `exactness.py` checks the known ones.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.torch import around, hooks, is_saved, parts, put
from st_matryoshka2d._hosts.transformers import drop_captures
from st_matryoshka2d.errors import UsageTypeError
from st_matryoshka2d.model.adapters import require_steady
from st_matryoshka2d.model.copies import same, settings, trial
from st_matryoshka2d.model.cut_config import cut_config
from st_matryoshka2d.model.layers import Layers
from st_matryoshka2d.model.network import core, refusal, refuse_compiled, require_network
from st_matryoshka2d.model.packed import Packed, find_packed
from st_matryoshka2d.sizes import layered

# Paths of the blocks and the tail, by architecture. Threads may find the same at once, each on a copy
# of its own.
_FOUND: dict[str, tuple[str | None, tuple[str, ...], Mapping[str, Packed]]] = {}


@dataclass(frozen=True)
class Backbone:
    """The layers of a model: which blocks each depth runs, and the dotted paths of modules."""

    layers: Layers
    # the list of blocks; None if one block is run `num_layers` times (ALBERT), as only the config
    # shows
    blocks: str | None
    # the modules between the last block and the model's output, in order of use
    tail: tuple[str, ...]
    # other modules that have a part for each layer, by path
    packed: Mapping[str, Packed]

    @property
    def num_layers(self) -> int:
        """How many blocks the whole model runs."""
        return self.layers.total

    def blocks_of(self, model: PreTrainedModel) -> list[nn.Module]:
        """List the blocks in order; none if one block is repeated."""
        return [] if self.blocks is None else list(model.get_submodule(self.blocks).children())

    def finish(self, model: PreTrainedModel, state: Tensor) -> Tensor:
        """Turn the raw state after a block into the output of the model cut there; both are (batch, tokens, hidden)."""
        for path in self.tail:
            state = model.get_submodule(path)(state)
        return state


def find_backbone(model: nn.Module, layers: Layers | None = None) -> Backbone:
    """Find the blocks and the tail of a model; None for the first layers at each depth."""
    refuse_compiled(model)
    model = require_network(model)
    require_steady(model)
    num_layers = getattr(layered(model.config), "num_hidden_layers", None)
    if isinstance(num_layers, bool) or not isinstance(num_layers, int) or num_layers < 1:
        raise refusal(model, f"Its config has no usable `num_hidden_layers` (found {num_layers!r}).")
    known = architecture(model)
    if known not in _FOUND:
        network = core(model)
        start = next(path for path, module in model.named_modules() if module is network)
        blocks = _find_blocks(network, num_layers)
        tail, packed = _find_tail(network, blocks), find_packed(network, blocks)
        _FOUND[known] = (
            None if blocks is None else _joined(start, blocks),
            tuple(_joined(start, path) for path in tail),
            {_joined(start, path): part for path, part in packed.items()},
        )
    return Backbone(layers or Layers(num_layers), *_FOUND[known])


def _joined(start: str, path: str) -> str:
    return f"{start}.{path}".strip(".")


def shallow_view(model: PreTrainedModel, backbone: Backbone, num_layers: int) -> PreTrainedModel:
    """Return the model with the blocks of a depth only; it shares the parameters, so training it trains them."""
    # Containers are copied, so that the view can have fewer blocks and a config of its own;
    # parameters, buffers and leaf modules are shared, no tensor is made but from those that hold
    # all layers, and the model itself does not change.
    config = cut_config(model.config, backbone.layers, num_layers)
    configs = {id(layered(model.config)): layered(config), id(model.config): config}
    layers = backbone.layers.kept(num_layers)
    copies: dict[int, nn.Module] = {}

    def copy_container(module: nn.Module, path: str, position: int | None = None) -> nn.Module:
        packed = backbone.packed.get(path) if num_layers < backbone.num_layers else None
        if id(module) in copies or not (parts(module) or packed):
            return copies.get(id(module), module)
        if path == backbone.blocks:
            every = list(module.children())
            inside: dict[str, nn.Module | None] = {str(place): every[layer] for place, layer in enumerate(layers)}
        else:
            inside = parts(module)
        container = copies[id(module)] = around(module, inside)
        drop_captures(container)
        if packed:
            packed.select(container, layers, backbone.num_layers)
        if (own := configs.get(id(getattr(module, "config", None)))) is not None:
            vars(container)["config"] = own
        if position is not None and hasattr(container, "layer_idx"):
            # a decoder's cache has one entry for each layer that is left
            vars(container)["layer_idx"] = position
        for name, child in inside.items():
            place = int(name) if path == backbone.blocks else position
            put(container, name, None if child is None else copy_container(child, f"{path}.{name}".lstrip("."), place))
        return container

    view = copy_container(model, "")
    if not isinstance(view, PreTrainedModel):
        raise UsageTypeError(f"{type(model).__name__} copied itself into a {type(view).__name__}.")
    return view


def text_lists(model: PreTrainedModel) -> dict[str, nn.ModuleList]:
    """Return the lists of modules by path; in a model of texts, images and sounds, those of its text model."""
    modules, config = dict(model.named_modules()), layered(model.config)
    texts = (path for path, module in modules.items() if isinstance(module, PreTrainedModel) and module.config is config)
    text = next(texts, "")
    if others := inspect.signature(modules[text].forward).parameters.keys() - _TEXT_INPUTS if text else ():
        raise refusal(
            model, f"Its text model takes {', '.join(sorted(others))} too, which may enter some layers by their number."
        )
    return {path: part for path, part in modules.items() if isinstance(part, nn.ModuleList) and path.startswith(text)}


# What the text model within another takes: embeddings of tokens, of images among them, and what goes with each.
_TEXT_INPUTS = {
    *("input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids"),
    *("past_key_values", "use_cache", "cache_position", "per_layer_inputs", "logits_to_keep", "kwargs"),
}


def _find_blocks(model: PreTrainedModel, num_layers: int) -> str | None:
    lengths = {path: len(blocks) for path, blocks in text_lists(model).items()}
    lists: list[str] = [path for path, length in lengths.items() if length == num_layers]
    if repeated := [path for path in lists if len(set(model.get_submodule(path).children())) < num_layers]:
        raise refusal(
            model,
            f"{repeated[0]} holds the same module more than once, and transformers could not save it either. Give every "
            "layer a copy of its own: `layers[2] = copy.deepcopy(layers[2])`.",
        )
    outermost = [path for path in lists if not any(path.startswith(f"{other}.") for other in lists)]
    if len(outermost) == 1:
        return outermost[0]
    if not lists and set(lengths.values()) == {1}:
        return None
    raise refusal(
        model,
        f"Looked for one ModuleList of {num_layers} blocks (config.num_hidden_layers), found {len(outermost)}: {outermost}; "
        f"all its lists: {lengths}.",
    )


def _find_tail(model: PreTrainedModel, blocks: str | None) -> tuple[str, ...]:
    """Follow the last block's output through the modules beside the block list until it is the model's output."""
    if blocks is None or layered(model.config).num_hidden_layers == 1:
        # one block for all layers has no tail to find; with one layer there is no other state to
        # finish
        return ()
    try:
        network, inputs = trial(model)
    except NotImplementedError as error:
        raise refusal(model, f"It does not tell which of its modules embeds tokens. {error}") from error
    steps = blocks.split(".")
    ancestors = [".".join(steps[:depth]) for depth in range(len(steps))]
    beside = {
        path: module
        for path, module in network.named_modules(remove_duplicate=False)
        if path not in (*ancestors, blocks) and path.rpartition(".")[0] in ancestors
    }
    calls: list[tuple[str, Any, Any]] = []

    def record(path: str) -> Any:
        return lambda module, args, output: calls.append((path, args[0] if args else None, output))

    *_, last = network.get_submodule(blocks).children()
    for path, module in [(blocks, last), *beside.items()]:
        module.register_forward_hook(record(path))
    try:
        with torch.no_grad():
            goal = network(**inputs).last_hidden_state
    except Exception as error:
        raise refusal(model, f"It failed on a few test tokens. {type(error).__name__}: {error}") from error
    reached: Any = None
    tail: list[str] = []
    for path, given, output in calls:
        if path == blocks:
            reached, tail = output[0] if isinstance(output, tuple) else output, []
        elif reached is not None and given is reached and (reached is not goal or output is goal):
            # a dropout after the norm changes nothing here, but it does in training
            reached = output
            tail.append(path)
    if not isinstance(reached, Tensor) or not same(reached, goal):
        raise refusal(
            model, f"Looked for modules that turn the output of {blocks}[-1] into its output, found {tail or 'none'}."
        )
    return tuple(tail)


def architecture(model: PreTrainedModel) -> str:
    """Digest all that decides how a model computes, but for its weights: config, modules, their settings and buffers."""
    digest = hashlib.sha256(model.config.to_json_string(use_diff=False).encode())
    for path, module in model.named_modules(remove_duplicate=False):
        functions = {name: getattr(value, "__qualname__", "") for name, value in vars(module).items() if callable(value)}
        weights = module.named_parameters(recurse=False, remove_duplicate=False)
        tensors = [(name, weight.shape, weight.dtype) for name, weight in weights]
        described = path, id(type(module)), type(module), settings(module), functions, len(hooks(module)), tensors
        digest.update(repr(described).encode())
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if buffer.is_meta or is_saved(module, name):
                continue  # the others are in the state dict, so that every way to a cut has them
            digest.update(buffer.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
