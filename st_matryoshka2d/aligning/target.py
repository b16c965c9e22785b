"""Embeddings of texts in the space of another model: by that model, or those that exist already."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import Tensor
from tqdm.auto import tqdm

from st_matryoshka2d.aligning.gather import Text, warn_without_prompts
from st_matryoshka2d.aligning.parts import Part, parts_of
from st_matryoshka2d.encoding.existing import Existing

Embeddings: TypeAlias = ArrayLike | Tensor | str | os.PathLike[str]
Texts: TypeAlias = Iterable[str] | Mapping[str, Iterable[str]]

_CHUNK = 4096  # texts embedded or read at once


class Target(Protocol):
    """Another space: its dims, and the embeddings of texts there."""

    dim: int

    def rows(self, texts: Sequence[Text], parts: Sequence[Part]) -> Float[Tensor, "texts out"]:
        """Embed texts that were drawn from these parts."""


def target_of(
    into: SentenceTransformer | Embeddings | Mapping[str, Embeddings],
    texts: Texts,
    prompt_name: str | None,
    batch_size: int,
    hidden: bool | None,
) -> Target:
    """Check what was given as the other space."""
    if isinstance(into, SentenceTransformer):
        return OtherModel(into, texts, prompt_name, batch_size, hidden)
    names = list(texts) if isinstance(texts, Mapping) else None
    if (list(into) if isinstance(into, Mapping) else None) != names:
        given = f"a dict of {list(into)}" if isinstance(into, Mapping) else f"one {type(into).__name__}"
        wanted = f"a dict of embeddings by the same names, {names}" if names else "an array of their embeddings"
        raise ValueError(f"`into` is {given}, but the texts need a SentenceTransformer, or {wanted}.")
    return OtherEmbeddings(list(into.values()) if isinstance(into, Mapping) else [into])


class OtherModel:
    """Another model, each text with that model's own prompt."""

    def __init__(
        self, model: SentenceTransformer, texts: Texts, prompt_name: str | None, batch_size: int, hidden: bool | None
    ) -> None:
        if model.truncate_dim is not None:
            raise ValueError(
                f"The model of the other space has truncate_dim={model.truncate_dim}. Set truncate_dim = None, and cut what "
                "`align_into` returns."
            )
        if isinstance(next(model.children()), Router):
            raise ValueError(
                "The model of the other space starts with a Router. Embed the texts by it, and pass their embeddings."
            )
        self.model, self.batch_size, self.hidden = model, batch_size, hidden
        try:
            self.prompts = [part.prompt for part in parts_of(model, texts, None, prompt_name)]
        except ValueError as error:
            error.add_note("This is about the model of the other space.")
            raise
        self.dim = int(model.get_embedding_dimension() or 0)

    def rows(self, texts: Sequence[Text], parts: Sequence[Part]) -> Float[Tensor, "texts out"]:
        """Embed texts, those of a part with its prompt."""
        prompted = [text._replace(prompt=self.prompts[text.part]) for text in texts]
        warn_without_prompts(self.model, prompted, stacklevel=3)
        found = torch.empty(len(texts), self.dim)
        with tqdm(total=len(texts), desc="Embedding texts by the other model", unit=" texts", disable=self.hidden) as bar:
            for number, prompt in enumerate(self.prompts):
                places = [place for place, text in enumerate(texts) if text.part == number]
                for start in range(0, len(places), _CHUNK):
                    chunk = places[start : start + _CHUNK]
                    settings: dict[str, Any] = {"convert_to_tensor": True, "show_progress_bar": False, "prompt": prompt}
                    rows: Tensor = self.model.encode(
                        [texts[place].text for place in chunk], batch_size=self.batch_size, **settings
                    )
                    found[chunk] = rows.float().cpu()
                    bar.update(len(chunk))
        if not found.isfinite().all():
            raise ValueError("The other model's embeddings of the texts are not all finite.")
        return found


class OtherEmbeddings:
    """Embeddings that exist already: one row for each text of each part, empty ones too."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.existing = [Existing(part, "texts") for part in parts]
        if len(dims := {each.dim for each in self.existing}) > 1:
            raise ValueError(f"The embeddings of the parts differ in width: {sorted(dims)}.")
        self.dim = dims.pop()

    def rows(self, texts: Sequence[Text], parts: Sequence[Part]) -> Float[Tensor, "texts out"]:
        """Take the rows of texts, and refuse a number of rows other than that of the texts."""
        found = np.empty((len(texts), self.dim), np.float32)
        for number, (part, existing) in enumerate(zip(parts, self.existing, strict=True)):
            places = np.array([place for place, text in enumerate(texts) if text.part == number], dtype=np.int64)
            rows = np.array([texts[place].row for place in places], dtype=np.int64)
            total = part.left_out.total
            for start in range(0, total, _CHUNK):
                chunk = existing.take(min(_CHUNK, total - start))
                here = (start <= rows) & (rows < start + len(chunk))
                found[places[here]] = chunk[rows[here] - start]
            existing.end()
        return torch.from_numpy(found)
