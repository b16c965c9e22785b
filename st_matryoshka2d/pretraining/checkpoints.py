"""What pre-training starts from: a checkpoint with a masked-LM head, and its tokenizer."""

from __future__ import annotations

import os
from typing import Any

from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

__all__ = ["load_masked_lm"]


def load_masked_lm(
    name_or_path: str | os.PathLike[str], **kwargs: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """A model with a masked-LM head, and its tokenizer; None where there are weights alone.

    Args:
        name_or_path: Hub id or folder.
        **kwargs: Keywords of `AutoModelForMaskedLM.from_pretrained`.

    Raises:
        ValueError: The architecture has no masked-LM head, or its tokenizer has no mask token.
    """
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
        return None  # whoever has the tokenizer makes the collator with it
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        return None  # what transformers makes up where there is none, of the family's special tokens
    if tokenizer.mask_token is None:
        raise ValueError(f"The tokenizer of {name_or_path} has no mask token, so nothing can be masked.")
    return tokenizer
