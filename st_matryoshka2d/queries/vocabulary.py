"""The tokenizer of a table: that of the model without special tokens."""

from __future__ import annotations

import json

from tokenizers import Tokenizer


def table_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Copy a tokenizer without special tokens, truncation and padding; tokens keep their ids."""
    settings = json.loads(tokenizer.to_str())
    settings |= {"truncation": None, "padding": None, "post_processor": None}
    # A special token that is written out in a text is text there.
    settings["added_tokens"] = [token for token in settings["added_tokens"] if not token["special"]]
    return Tokenizer.from_str(json.dumps(settings))
