"""Embed texts and collect what readouts are fitted on: sums over all texts, and embeddings of a sample."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize
from tqdm.auto import tqdm

from st_matryoshka2d.aligning.parts import Part
from st_matryoshka2d.aligning.ridge import Sums
from st_matryoshka2d.data_warning import DataWarning
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.encoding.prompts import without_prompts
from st_matryoshka2d.model.pipeline import Pipeline

_CHUNK = 1024  # texts embedded between updates of the sums
_HELD_OUT = 0.1  # share of the texts for choosing the strength of the regression
_SAMPLE = 20_000  # texts whose embeddings are kept for the refinement, limited by the next line
_SAMPLE_BYTES = 2**30
# The user may have set other defaults for new tensors; embeddings are collected as these.
_KIND: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


class Gathered:
    """Statistics of the embeddings of one route by depth, and a random sample of them at all depths."""

    def __init__(self, num_layers: int, dim: int) -> None:
        self.num_layers, self.dim = num_layers, dim
        self.fitted, self.held_out = ([Sums(dim) for _ in range(num_layers)] for _ in range(2))
        self.sample: Float[Tensor, "texts layers dim"] = torch.empty(0, num_layers, dim, **_KIND)
        self._keys = torch.empty(0, **_KIND)  # a random number for each sampled text; the sample has the smallest

    def sums(self, num_layers: int) -> Sums:
        """Return the sums over all texts at a depth."""
        return self.fitted[num_layers - 1] + self.held_out[num_layers - 1]

    def add(self, embeddings: Float[Tensor, "texts layers dim"], unit: bool, draw: torch.Generator) -> None:
        """Add a chunk of texts to the sums and to the sample."""
        if not embeddings.isfinite().all():
            raise ValueError("The model's embeddings of the texts are not all finite.")
        whole = normalize(embeddings[:, -1]) if unit else embeddings[:, -1]
        held_out = torch.rand(len(embeddings), generator=draw, **_KIND) < _HELD_OUT
        for layer in range(self.num_layers):
            self.held_out[layer].add(embeddings[held_out, layer], whole[held_out])
            self.fitted[layer].add(embeddings[~held_out, layer], whole[~held_out])
        keys = torch.cat([self._keys, torch.rand(len(embeddings), generator=draw, **_KIND)])
        room = max(1000, min(_SAMPLE, _SAMPLE_BYTES // (4 * self.num_layers * self.dim)))
        kept = keys.argsort()[:room].sort().values
        self.sample, self._keys = torch.cat([self.sample, embeddings])[kept], keys[kept]


def gather(
    model: SentenceTransformer, parts: Sequence[Part], batch_size: int, hide_progress_bar: bool | None
) -> dict[str, Gathered]:
    """Embed every text once by each route of the model, with the prompt of its part."""
    pipeline = Pipeline.of(model)
    full, unit = pipeline.full, bool(pipeline.trailing_normalize())
    every = EveryLayer.of(model, range(1, full.num_layers + 1), normalize=False)
    gathered = {name: Gathered(full.num_layers, full.dim) for name in pipeline.routes}
    draws = {name: torch.Generator().manual_seed(0) for name in gathered}
    seen: set[int] = set()  # a text with another prompt is another text
    lengths = [part.length for part in parts]
    total = None if None in lengths else sum(filter(None, lengths))
    with tqdm(total=total, desc="Embedding texts", unit=" texts", disable=hide_progress_bar) as bar:
        for part in parts:
            for number, chunk in enumerate(part.chunks(_CHUNK, seen)):
                if number == 0 and part.prompt is None and (told := without_prompts(model, chunk)):
                    warnings.warn(told, DataWarning, stacklevel=3)
                for name, route in gathered.items():
                    route.add(_embedded(every, chunk, part.prompt, name, batch_size), unit, draws[name])
                bar.update(_rows_read(parts) - bar.n)
            bar.update(_rows_read(parts) - bar.n)  # the last rows may be empty, or seen before
    for part in parts:
        part.left_out.tell(stacklevel=3)
    if len(seen) < 3:
        raise ValueError(f"Alignment needs at least 3 different texts, and works best with thousands; got {len(seen)}.")
    return gathered


def _rows_read(parts: Sequence[Part]) -> int:
    return sum(part.left_out.total for part in parts)


def _embedded(
    every: EveryLayer, texts: list[str], prompt: str | None, route: str, batch_size: int
) -> Float[Tensor, "texts layers dim"]:
    """Embed texts by one route of the model; its name is empty if there is only one."""
    kwargs: dict[str, Any] = {"task": route} if route else {}
    found: Tensor = every.encode(
        texts, prompt=prompt, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False, **kwargs
    )
    # Tensors from inference mode cannot be used in autograd, so copy them.
    return found.float().cpu().clone().view(len(texts), len(every.depths), -1)
