"""Checkpoints: what pre-training starts from, and how it is saved where two modules share a weight."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any

from torch import nn
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)


def load_masked_lm(
    name_or_path: str | os.PathLike[str], **kwargs: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """A model with a masked-LM head, and its tokenizer; None where there are weights alone."""
    hub = {name: kwargs[name] for name in ("revision", "token", "cache_dir", "local_files_only") if name in kwargs}
    config = AutoConfig.from_pretrained(name_or_path, **hub)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise ValueError(
            f"{name_or_path} is a {config.model_type}, which has no masked-LM head in transformers: a decoder-only model "
            "or an encoder-decoder. SMAE needs an encoder such as BERT, RoBERTa, MPNet or ModernBERT."
        )
    tokenizer = _tokenizer(name_or_path, **hub)
    return AutoModelForMaskedLM.from_pretrained(name_or_path, **kwargs), tokenizer


def _tokenizer(name_or_path: str | os.PathLike[str], **hub: Any) -> PreTrainedTokenizerBase | None:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name_or_path, **hub)
    except (OSError, ValueError):
        return None  # then the user makes the collator with a tokenizer of their own
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        return None  # what transformers makes up where there is none, of the family's special tokens
    if tokenizer.mask_token is None:
        raise ValueError(f"The tokenizer of {name_or_path} has no mask token, so nothing can be masked.")
    return tokenizer


def register_tied_weights(module: nn.Module) -> None:
    """Keep a shared weight once in state dicts, and find it by its second name: safetensors refuses to write it twice."""
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
