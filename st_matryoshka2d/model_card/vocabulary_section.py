"""The section on a smaller vocabulary: the texts that it was made of, and what it does to others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from st_matryoshka2d.model_card.readme import markdown

_SECTION = """## Vocabulary

This model has {rows:,} of the {of:,} tokens of {whole}: those of the texts below, and others that look like them. A text
that has no other token has the same embedding as before, and other words are split into more tokens. Of the texts, a
tenth was left out of a first vocabulary: the share of them that were embedded exactly as before, and the mean cosine of the
others with their embeddings before. Texts in other languages are embedded badly.

{table}"""


def vocabulary_section(vocabulary: Mapping[str, Any]) -> str:
    """Return the section of a model with a smaller vocabulary."""
    return _SECTION.format(**vocabulary, whole=f"`{vocabulary['model']}`", table=markdown(*vocabulary_table(vocabulary)))


def vocabulary_table(vocabulary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return a table of the texts of each language, its head and its rows; empty cells were not measured."""
    rows = [
        [
            language,
            f"{count:,}",
            f"{vocabulary['exact'][language]:.1%}" if language in vocabulary["exact"] else "",
            f"{vocabulary['cosine'][language]:.3f}" if language in vocabulary["cosine"] else "",
        ]
        for language, count in vocabulary["texts"].items()
    ]
    return ["language", "texts", "exact", "cosine of others"], rows
