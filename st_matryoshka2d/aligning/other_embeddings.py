"""Another space: the embeddings of texts by another model, or those that exist already."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import Tensor

from st_matryoshka2d.aligning.sample import Part, Text, Texts, embedded, parts_of, warn_without_prompts
from st_matryoshka2d.encoding.existing_embeddings import Existing
from st_matryoshka2d.encoding.progress import progress
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.identity import model_name

if TYPE_CHECKING:
    from jaxtyping import Float

Embeddings: TypeAlias = ArrayLike | Tensor | str | os.PathLike[str]
Into: TypeAlias = SentenceTransformer | Embeddings | Mapping[str, Embeddings]

_CHUNK = 4096  # rows read at once


class OtherModel:
    """Another model, each text with that model's own prompt."""

    def __init__(
        self, model: SentenceTransformer, texts: Texts, prompt_name: str | None, batch_size: int, hidden: bool | None
    ) -> None:
        if model.truncate_dim is not None:
            raise UsageError(
                f"The model of the other space has truncate_dim={model.truncate_dim}. Set "
                "truncate_dim = None, and cut what `align` returns."
            )
        if isinstance(next(model.children()), Router):
            raise UsageError(
                "The model of the other space starts with a Router. Embed the texts by it, and pass their embeddings."
            )
        self.model, self.batch_size, self.hidden = model, batch_size, hidden
        try:
            self.prompts = [part.prompt for part in parts_of(model, texts, None, prompt_name)]
        except ValueError as error:
            error.add_note("This is about the model of the other space.")
            raise
        dim = int(model.get_embedding_dimension() or 0)
        self.dims = [*(narrow for narrow in Declaration.of(model.config).dims if narrow < dim), dim]
        self.name, self.similarity = model_name(model), model.similarity_fn_name

    def rows(self, texts: Sequence[Text], parts: Sequence[Part]) -> Float[Tensor, "texts out"]:
        """Embed texts, those of a part with its prompt."""
        prompted = [text._replace(prompt=self.prompts[text.part]) for text in texts]
        warn_without_prompts(self.model, prompted)
        with progress("Embedding texts by the other model", len(texts), "texts", self.hidden) as bar:
            return embedded(self.model, prompted, self.dims[-1], self.batch_size, bar)


class OtherEmbeddings:
    """Embeddings that exist already: one row for each text of each part, empty ones too."""

    name, similarity = "other embeddings", None

    def __init__(self, parts: Sequence[Any]) -> None:
        self.existing = [Existing(part, "texts") for part in parts]
        self.dims = sorted({rows.dim for rows in self.existing})
        if len(self.dims) > 1:
            raise UsageError(f"The embeddings of the parts differ in width: {self.dims}.")

    def rows(self, texts: Sequence[Text], parts: Sequence[Part]) -> Float[Tensor, "texts out"]:
        """Take the rows of texts; refuse a number of rows other than that of the texts."""
        taken = np.empty((len(texts), self.dims[0]), np.float32)
        for number, (part, existing) in enumerate(zip(parts, self.existing, strict=True)):
            of_part = [place for place, text in enumerate(texts) if text.part == number]
            places = np.array(of_part, dtype=np.int64)
            rows = np.array([texts[place].row for place in of_part], dtype=np.int64)
            total = part.left_out.total
            for start in range(0, total, _CHUNK):
                chunk = existing.take(min(_CHUNK, total - start))
                here = (start <= rows) & (rows < start + len(chunk))
                taken[places[here]] = chunk[rows[here] - start]
            existing.end()
        return torch.from_numpy(taken)


Target: TypeAlias = OtherModel | OtherEmbeddings


def target_of(into: Into, texts: Texts, prompt_name: str | None, batch_size: int, hidden: bool | None) -> Target:
    """Check what was given as the other space."""
    if isinstance(into, SentenceTransformer):
        return OtherModel(into, texts, prompt_name, batch_size, hidden)
    names = list(texts) if isinstance(texts, Mapping) else None
    by_name = list(into) if isinstance(into, Mapping) else None
    if by_name != names:
        given = f"one {type(into).__name__}" if by_name is None else f"a dict of {by_name}"
        array = "an array of their embeddings"
        wanted = f"a dict of embeddings by the same names, {names}" if names else array
        needed = f"the texts need a SentenceTransformer, or {wanted}"
        raise UsageError(f"`into` is {given}, but {needed}.")
    return OtherEmbeddings(list(into.values()) if isinstance(into, Mapping) else [into])
