"""The parts of a masked language model, whatever its family: found by structure, proved by running a few tokens.

`embedding layer -> blocks -> head -> vocabulary`: pre-training needs what the first block is given, and the head apart from
its last product. Views made here are containers around the model's own modules, made for each use: no tensor is copied
and no module changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from st_matryoshka2d.backbone import Backbone, cut_config, find_backbone, probing, same


@dataclass(frozen=True)
class MaskedLM:
    """Dotted paths of the encoder and of the head's last product in the model, and of the embedding layer in the encoder."""

    backbone: Backbone
    encoder: str
    entry: str
    vocabulary: str

    def head(self, mlm: PreTrainedModel, states: Tensor) -> Tensor:
        """The head up to the vocabulary: (rows, hidden) to (rows, width of the output embeddings)."""
        view = _replaced(mlm, {self.encoder: _Given(states[None]), self.vocabulary: nn.Identity()})
        logits: Tensor = view(inputs_embeds=states[None]).logits
        return logits[0]

    def decode(self, mlm: PreTrainedModel, blocks: nn.ModuleList, cls: Tensor, **inputs: Tensor) -> Tensor:
        """States (batch, tokens, hidden) of other blocks on the encoder's embeddings, the first of which `cls` replaces."""
        encoder = mlm.get_submodule(self.encoder)
        entry = _FirstReplaced(encoder.get_submodule(self.entry), cls)
        view = _replaced(
            encoder, {self.entry: entry, str(self.backbone.blocks): blocks}, cut_config(mlm.config, len(blocks))
        )
        states: Tensor = view(**inputs).last_hidden_state
        return states


def find_masked_lm(mlm: PreTrainedModel) -> MaskedLM:
    """Find the parts of a masked language model; refuse a decoder, a repeated block, or a head that is not understood."""
    if not isinstance(mlm, PreTrainedModel):
        raise TypeError(f"A model that AutoModelForMaskedLM loads is needed, a PreTrainedModel; got {type(mlm).__name__}.")
    if mlm.can_generate():
        raise ValueError(f"{type(mlm).__name__} generates text token by token; masked tokens need an encoder.")
    if getattr(mlm.config, "is_decoder", False):
        raise ValueError(f"{type(mlm).__name__} is set up as a decoder (config.is_decoder); masked tokens need an encoder.")
    encoder: Any = mlm.base_model
    backbone = find_backbone(encoder)
    if backbone.blocks is None:
        raise ValueError(f"{type(mlm).__name__} repeats one block; the decoder needs a block of its own to start from.")
    with probing(mlm) as inputs:
        parts = MaskedLM(
            backbone,
            mlm.base_model_prefix,
            _find_entry(encoder, backbone, inputs),
            _find_vocabulary(mlm),
        )
        _check_head(mlm, parts, inputs)
    return parts


def _find_entry(encoder: PreTrainedModel, backbone: Backbone, inputs: Mapping[str, Tensor]) -> str:
    """The outermost module that returns exactly what the first block is given."""
    made: list[tuple[str, Any]] = []
    given: list[Any] = []

    def note_output(path: str) -> Any:
        return lambda module, args, output: made.append((path, output))

    def note_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.append(args[0] if args else kwargs.get("hidden_states"))

    blocks = str(backbone.blocks)
    first = next(encoder.get_submodule(blocks).children())
    around = [path for path, _ in encoder.named_modules() if path and not f"{path}.".startswith(f"{blocks}.")]
    hooks = [encoder.get_submodule(path).register_forward_hook(note_output(path)) for path in around]
    hooks.append(first.register_forward_pre_hook(note_input, with_kwargs=True))
    try:
        encoder(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    found = [path for path, output in made if given and output is given[0]]
    if not found:
        raise ValueError(
            f"{type(encoder).__name__}: no module returns what its first block is given, so no vector of it can be replaced."
        )
    outermost: str = min(found, key=lambda path: path.count("."))
    return outermost


def _find_vocabulary(mlm: PreTrainedModel) -> str:
    output: Any = mlm.get_output_embeddings()
    found: list[str] = [path for path, module in mlm.named_modules() if module is output]
    if not found or not isinstance(output, nn.Linear):
        raise ValueError(
            f"{type(mlm).__name__} ends in {type(output).__name__}, not in one linear layer over the vocabulary; "
            "its masked-LM head is not understood."
        )
    return found[0]


def _check_head(mlm: PreTrainedModel, parts: MaskedLM, inputs: Mapping[str, Tensor]) -> None:
    """The parts in a row must give the model's own logits."""
    wanted = mlm(**inputs).logits.flatten(0, 1)
    states = mlm.get_submodule(parts.encoder)(**inputs).last_hidden_state.flatten(0, 1)
    logits = mlm.get_submodule(parts.vocabulary)(parts.head(mlm, states))
    if not same(logits, wanted, tolerance=1e-5 if logits.dtype == torch.float32 else 2e-2):
        raise ValueError(f"{type(mlm).__name__}: its head, run by itself, gives other logits than in the model.")


class _Given(nn.Module):
    """In place of an encoder: returns states that are there already."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self._states = states

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self._states)


class _FirstReplaced(nn.Module):
    """In place of an embedding layer: its output with another vector for the first token."""

    def __init__(self, entry: nn.Module, first: Tensor) -> None:
        super().__init__()
        self._entry = entry
        self._first = first

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        states: Tensor = self._entry(*args, **kwargs)
        return torch.cat([self._first[:, None].to(states.dtype), states[:, 1:]], dim=1)


def _replaced(module: nn.Module, replacements: Mapping[str, nn.Module], config: Any = None) -> Any:
    """The same module with others in some places; what is on the way there is copied, all else shared."""
    view = copy.copy(module)
    if config is not None and getattr(module, "config", None) is not None:
        vars(view)["config"] = config
    view._modules = dict(module._modules)
    for name in {path.split(".")[0] for path in replacements}:
        inner = {path.removeprefix(f"{name}."): new for path, new in replacements.items() if path.startswith(f"{name}.")}
        child: Any = module._modules[name]
        view._modules[name] = replacements[name] if name in replacements else _replaced(child, inner, config)
    return view
