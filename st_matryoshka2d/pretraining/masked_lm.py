"""Load a masked language model of any family, and find its parts by structure, verified with a few tokens.

`embedding layer -> blocks -> head -> vocabulary`: pre-training needs the input of the first block,
and the head without its last product. Views share the modules of the model: no tensor is copied and
no module changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import BaseModelOutput

from st_matryoshka2d._hosts.torch import around, parts, put
from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.model.backbone import Backbone, find_backbone
from st_matryoshka2d.model.copies import same, trial
from st_matryoshka2d.model.cut_config import cut_config


def load_masked_lm(
    name_or_path: str | os.PathLike[str], **kwargs: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a model with a masked-LM head, and its tokenizer; None if there is none."""
    hub = {name: kwargs[name] for name in ("revision", "token", "cache_dir", "local_files_only") if name in kwargs}
    config = AutoConfig.from_pretrained(name_or_path, **hub)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise UsageError(
            f"{name_or_path} is a {config.model_type}, which has no masked-LM head in transformers: a decoder-only model "
            "or an encoder-decoder. SMAE needs an encoder such as BERT, RoBERTa, MPNet or ModernBERT."
        )
    tokenizer = _tokenizer(name_or_path, **hub)
    return AutoModelForMaskedLM.from_pretrained(name_or_path, **kwargs), tokenizer


def _tokenizer(name_or_path: str | os.PathLike[str], **hub: Any) -> PreTrainedTokenizerBase | None:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name_or_path, **hub)
    except (OSError, ValueError):
        return None  # the user passes a tokenizer to the collator
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        return None  # transformers' stand-in for a missing one: special tokens alone
    if tokenizer.mask_token is None:
        raise UsageError(f"The tokenizer of {name_or_path} has no mask token, so nothing can be masked.")
    return tokenizer


@dataclass(frozen=True)
class MaskedLM:
    """The encoder's blocks, the path of its embedding layer in it, and that of the head's last layer in the model."""

    backbone: Backbone
    entry: str
    vocabulary: str

    def head(self, mlm: PreTrainedModel, states: Tensor) -> Tensor:
        """Apply the head before its last layer: (rows, hidden) to (rows, width of the output embeddings)."""
        given = BaseModelOutput(last_hidden_state=states[None])
        view = _replaced(mlm, {mlm.base_model_prefix: _InPlace(lambda *_, **__: given), self.vocabulary: nn.Identity()})
        logits: Tensor = view(inputs_embeds=states[None]).logits
        return logits[0]

    def decode(self, mlm: PreTrainedModel, blocks: nn.ModuleList, cls: Tensor, **inputs: Tensor) -> Tensor:
        """Run other blocks on the encoder's embeddings, the first replaced by `cls`; return (batch, tokens, hidden)."""
        embed = mlm.base_model.get_submodule(self.entry)

        def with_cls(*args: Any, **kwargs: Any) -> Tensor:
            embedded: Tensor = embed(*args, **kwargs)
            return torch.cat([cls[:, None].to(embedded.dtype), embedded[:, 1:]], dim=1)

        replacements = {self.entry: _InPlace(with_cls), str(self.backbone.blocks): blocks}
        view = _replaced(mlm.base_model, replacements, cut_config(mlm.config, self.backbone.layers, len(blocks)))
        states: Tensor = view(**inputs).last_hidden_state
        return states


def find_masked_lm(mlm: PreTrainedModel) -> MaskedLM:
    """Find the parts of a masked language model; raise for a decoder, a repeated block, or an unsupported head."""
    if not isinstance(mlm, PreTrainedModel):
        raise UsageTypeError(f"Expected a PreTrainedModel, as AutoModelForMaskedLM loads it, got {type(mlm).__name__}.")
    if mlm.can_generate():
        raise UsageError(f"{type(mlm).__name__} generates text token by token; SMAE needs an encoder.")
    if getattr(mlm.config, "is_decoder", False):
        raise UsageError(f"{type(mlm).__name__} is set up as a decoder (config.is_decoder); SMAE needs an encoder.")
    encoder: Any = mlm.base_model
    backbone = find_backbone(encoder)
    if backbone.blocks is None:
        raise UsageError(f"{type(mlm).__name__} repeats one block; the decoder needs a separate first block to copy.")
    output: Any = mlm.get_output_embeddings()
    vocabulary = [path for path, module in mlm.named_modules() if module is output]
    if not vocabulary or not isinstance(output, nn.Linear):
        raise UsageError(f"{type(mlm).__name__} ends in {type(output).__name__}, not in a linear layer over the vocabulary.")
    copied, inputs = trial(mlm)
    copied_encoder: Any = copied.base_model
    with torch.no_grad():
        parts = MaskedLM(backbone, _find_entry(copied_encoder, backbone, inputs), vocabulary[0])
        wanted = copied(**inputs).logits.flatten(0, 1)
        logits = output(parts.head(copied, copied_encoder(**inputs).last_hidden_state.flatten(0, 1)))
        if not same(logits, wanted, tolerance=1e-5 if logits.dtype == torch.float32 else 2e-2):
            raise UsageError(f"{type(mlm).__name__}: its head, run separately, gives different logits than the model.")
    return parts


def _find_entry(encoder: PreTrainedModel, backbone: Backbone, inputs: Mapping[str, Tensor]) -> str:
    """Return the outermost module whose output is exactly the first block's input."""
    outputs: list[tuple[str, Any]] = []
    block_input: list[Any] = []
    blocks = str(backbone.blocks)
    paths = {part: path for path, part in encoder.named_modules() if path and not f"{path}.".startswith(f"{blocks}.")}
    with ExitStack() as hooks:
        for module in paths:
            hooks.enter_context(module.register_forward_hook(lambda seen, _, out: outputs.append((paths[seen], out))))
        first = next(encoder.get_submodule(blocks).children())
        note = first.register_forward_pre_hook(
            lambda _, args, kwargs: block_input.append(args[0] if args else kwargs.get("hidden_states")), with_kwargs=True
        )
        hooks.enter_context(note)
        encoder(**inputs)
    candidates = [path for path, output in outputs if block_input and output is block_input[0]]
    if not candidates:
        raise UsageError(
            f"{type(encoder).__name__}: no module returns the input of the first block, so CLS cannot be replaced in it."
        )
    outermost: str = min(candidates, key=lambda path: path.count("."))
    return outermost


class _InPlace(nn.Module):
    """Function in place of a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def _replaced(module: nn.Module, replacements: Mapping[str, nn.Module], config: Any = None) -> Any:
    """Return a view of a module with submodules replaced; their parents are copied, all else is shared."""
    view = around(module, parts(module))
    if config is not None and getattr(module, "config", None) is not None:
        vars(view)["config"] = config
    for name in {path.split(".")[0] for path in replacements}:
        inner = {path.removeprefix(f"{name}."): new for path, new in replacements.items() if path.startswith(f"{name}.")}
        put(view, name, replacements[name] if name in replacements else _replaced(getattr(module, name), inner, config))
    return view


def register_tied_weights(module: nn.Module) -> None:
    """Keep tied weights once in state dicts, and restore the others on load: safetensors refuses to write them twice."""
    module.register_state_dict_post_hook(_leave_out)
    module.register_load_state_dict_pre_hook(_put_back)


def _leave_out(module: nn.Module, state: MutableMapping[str, Any], prefix: str, metadata: Any) -> None:
    for name in _second_names(module):
        state.pop(prefix + name, None)


def _put_back(module: nn.Module, state: MutableMapping[str, Any], prefix: str, *_: Any) -> None:
    for name, first in _second_names(module).items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])


def _second_names(module: nn.Module) -> dict[str, str]:
    firsts: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first for name, weight in named if (first := firsts.setdefault(id(weight), name)) != name}
