"""Copy a tokenizer."""

from __future__ import annotations

import copy
from typing import Any

from tokenizers import Tokenizer

_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "encode_special_tokens")


def own_tokenizer(processor: Any) -> Any:
    """Copy a tokenizer, or a processor around one; only the vocabulary is shared, and settings of its model."""
    # A tokenizer holds the truncation and padding of the call under way, and the tokens that are
    # added to it. A plain deep copy would write out and parse a vocabulary, which takes seconds if
    # it has 250,000 tokens.
    tokenizer = getattr(processor, "tokenizer", processor)
    fast = getattr(tokenizer, "backend_tokenizer", None)
    return copy.deepcopy(processor, {id(fast): _copied(fast)} if isinstance(fast, Tokenizer) else {})


def _copied(tokenizer: Tokenizer) -> Tokenizer:
    made = Tokenizer(tokenizer.model)
    for part in _PARTS:
        setattr(made, part, _own(getattr(tokenizer, part)))
    for _, token in sorted(tokenizer.get_added_tokens_decoder().items()):
        (made.add_special_tokens if token.special else made.add_tokens)([token])
    if tokenizer.truncation:
        made.enable_truncation(**tokenizer.truncation)
    if tokenizer.padding:
        made.enable_padding(**tokenizer.padding)
    return made


def _own(part: Any) -> Any:
    """Copy a part, such as a normalizer, whose settings may be changed in place; one written in Python stays shared."""
    try:
        return copy.deepcopy(part)
    except Exception:  # as the library raises: it cannot be serialized
        return part
