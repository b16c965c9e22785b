"""Tokens that stay whatever texts have: signs and letters alone, which questions have and documents may not."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

_UNREADABLE = "\ufffd"  # a part of a character's bytes


def written(tokenizer: Tokenizer, model: Mapping[str, Any], name: str) -> str:
    """Return what a token stands for in a text, without the mark of a word's start, inside or end."""
    # a decoder knows the mark of a start and of an end, and how bytes are written
    text = tokenizer.decoder.decode([name]) if tokenizer.decoder else name
    return text.removeprefix(model.get("continuing_subword_prefix") or "").strip()


def is_sign(text: str) -> bool:
    """Tell whether a text has nothing but punctuation, quotes, currency and symbols, or is a digit."""
    kinds = {unicodedata.category(character)[0] for character in text}
    return bool(text) and _UNREADABLE not in text and (kinds <= {"P", "S"} or (len(text) == 1 and kinds == {"N"}))


def is_letter(text: str) -> bool:
    """Tell whether a text is a letter of an alphabet with capitals; in other scripts thousands are words of their own."""
    return len(text) == 1 and unicodedata.category(text) in ("Lu", "Ll")
