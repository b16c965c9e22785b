"""The texts of an alignment: in parts that each have one prompt, read row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sentence_transformers import SentenceTransformer

from st_matryoshka2d.encoding.check_texts import checked_text, rows_of
from st_matryoshka2d.encoding.left_out import LeftOut
from st_matryoshka2d.encoding.prompts import chosen_prompt


class Part:
    """Texts with one prompt; None for no prompt."""

    def __init__(self, texts: Any, prompt: str | None, name: str = "texts") -> None:
        self.prompt, self.name = prompt, name
        self.left_out = LeftOut(name)
        self._rows = rows_of(texts, name)

    def different(self, seen: set[int]) -> Iterator[tuple[int, str]]:
        """Yield texts that were not seen with this prompt, with their rows, but no empty ones; refuse other than strings."""
        for place, row in enumerate(self._rows):
            if self.left_out.lacks(row):
                continue
            text = checked_text(row, f"{self.name}[{place}]")
            if (mark := hash((self.prompt, text))) not in seen:
                seen.add(mark)
                yield place, text


def parts_of(
    model: SentenceTransformer,
    texts: Iterable[str] | Mapping[str, Iterable[str]],
    prompt: str | None,
    prompt_name: str | None,
) -> list[Part]:
    """Give texts their prompts as `encode` does; those of a dict get the prompt of their key. Nothing is read yet."""
    if not isinstance(texts, Mapping):
        return [Part(texts, chosen_prompt(model, prompt, prompt_name))]
    if prompt is not None or prompt_name is not None:
        raise ValueError(
            "`texts` is a dict, whose keys name the prompts, so neither `prompt` nor `prompt_name` can be given; got "
            f"{prompt=} and {prompt_name=}."
        )
    if unknown := [name for name in texts if name not in model.prompts]:
        raise ValueError(
            f"`texts` is a dict, whose keys must be names of the model's prompts, but {unknown[0]!r} is none of "
            f"{list(model.prompts)}. A column of a table is passed alone: table['text']."
        )
    return [Part(rows, model.prompts[name], f"texts[{name!r}]") for name, rows in texts.items()]
