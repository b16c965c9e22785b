"""Check texts and tokenizers before a model runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sentence_transformers import SentenceTransformer

from st_matryoshka2d.layers import routes_of


def check_texts(texts: Iterable[object], name: str = "texts") -> None:
    """Refuse a single string, and strings that no tokenizer accepts; other types are left to the tokenizer."""
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a list of texts, got one string; wrap it: [text].")
    for place, text in enumerate(texts):
        check_text(text, f"{name}[{place}]")


def check_text(text: object, where: str) -> None:
    """Refuse a text that cannot be encoded in UTF-8, which tokenizers and files need."""
    if isinstance(text, str) and not text.isascii():
        with naming_a_broken_text(where):
            text.encode()


def strings(values: Any, column: str) -> list[str]:
    """Convert a column to a list, and check that all rows are strings."""
    if isinstance(values, str):
        raise TypeError(f"Column {column!r} must be a list of texts, got one string; wrap it: [text].")
    if hasattr(values, "to_pylist"):  # pyarrow and Daft
        values = values.to_pylist()
    rows = values.tolist() if hasattr(values, "tolist") else list(values)
    for place, text in enumerate(rows):
        if not isinstance(text, str):
            raise TypeError(
                f"Row {place} of column {column!r} is {text!r} ({type(text).__name__}), but every row must be a string. "
                "Remove or fill such rows first."
            )
        check_text(text, f"Row {place} of column {column!r}")
    return rows


@contextmanager
def naming_a_broken_text(where: str) -> Iterator[None]:
    """Name the text in the error if it cannot be encoded."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: character {error.start} of the text {error.object[:80]!r} is half of a surrogate pair. The text was "
            "read with a wrong encoding or cut within an emoji. Read it again, or replace the character: "
            "text.encode('utf-8', 'replace').decode()."
        ) from error


def require_padding(model: SentenceTransformer) -> None:
    """Refuse a model whose tokenizer cannot pad a batch."""
    tokenizers = [route.transformer.tokenizer for route in routes_of(model).values()]
    if any(tokenizer is not None and tokenizer.pad_token is None for tokenizer in tokenizers):
        raise ValueError(
            "The tokenizer of this model has no padding token, which a batch of texts needs. Set one, for example "
            "`model.tokenizer.pad_token = model.tokenizer.eos_token`, and save the model with it."
        )
