"""Draw a sample of the texts and embed it at every depth: what readouts are fitted on."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from torch import Tensor
from tqdm.auto import tqdm

from st_matryoshka2d.aligning.agreement import different
from st_matryoshka2d.aligning.close_pairs import Pairs, with_words_left_out
from st_matryoshka2d.aligning.parts import Part
from st_matryoshka2d.data_warning import DataWarning
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.encoding.prompts import without_prompts
from st_matryoshka2d.model.kept_layers import passes
from st_matryoshka2d.model.pipeline import Pipeline

_CHUNK = 4096  # texts embedded between updates of the progress bar
_SAMPLE = 20_000  # texts whose embeddings are kept, limited by the next line; more hardly improve the fit
_SAMPLE_BYTES = 2**30
_FEW, _PASSES = 2000, 1.0  # of more texts, so many are embedded that it takes as long as this many passes of all
_COPIES = 1000  # texts that are embedded again with words left out
_COMPARED = 4000  # texts among which near copies are looked for
_KIND: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the user's defaults


class Text(NamedTuple):
    """A text with its prompt, and where it stands: the number of its part, and its row there."""

    prompt: str | None
    text: str
    part: int
    row: int


@dataclass
class Gathered:
    """Embeddings of texts by one route: before a final `Normalize`, in float32 on the CPU.

    Attributes:
        states: Embeddings at every depth.
        close: Some of the texts, and copies of them that lack some words, at the full depth.
        total: Different texts, of which `states` may be a sample.
    """

    states: Float[Tensor, "texts layers dim"]
    close: Pairs
    total: int

    @property
    def num_layers(self) -> int:
        """Depth of the whole model."""
        return self.states.shape[1]

    @property
    def dim(self) -> int:
        """Dims of the whole model."""
        return self.states.shape[2]

    @property
    def whole(self) -> Float[Tensor, "texts dim"]:
        """Embeddings by the whole model."""
        return self.at(self.num_layers)

    def at(self, num_layers: int) -> Float[Tensor, "texts dim"]:
        """Embeddings at a depth."""
        return self.states[:, num_layers - 1]


def gather(
    model: SentenceTransformer, parts: Sequence[Part], batch_size: int, hide_progress_bar: bool | None
) -> dict[str, Gathered]:
    """Embed a sample of the texts by each route of the model, with the prompts of their parts."""
    pipeline = Pipeline.of(model)
    full = pipeline.full
    texts, total = drawn(parts, passes(model.config, full.num_layers), 4 * full.num_layers * full.dim)
    warn_without_prompts(model, texts, stacklevel=3)
    every = EveryLayer.of(model, range(1, full.num_layers + 1), normalize=False)
    whole = EveryLayer.of(model, [full.num_layers], normalize=False)
    places, copies = with_words_left_out([each.text for each in texts], _COPIES)
    lacking = [texts[place]._replace(text=copy) for place, copy in zip(places, copies, strict=True)]
    gathered = {}
    steps = (len(texts) + len(lacking)) * len(pipeline.routes)
    with tqdm(total=steps, desc="Embedding texts", unit=" texts", disable=hide_progress_bar) as bar:
        for name in pipeline.routes:
            states = embedded(every, texts, name, batch_size, bar)
            if not states.isfinite().all():
                raise ValueError("The model's embeddings of the texts are not all finite.")
            close = states[places, -1], embedded(whole, lacking, name, batch_size, bar)[:, 0]
            gathered[name] = Gathered(states, close, total)
    return _without_copies(gathered)


def warn_without_prompts(model: SentenceTransformer, texts: Sequence[Text], stacklevel: int) -> None:
    """Warn if a model declares prompts and the texts have none."""
    if all(each.prompt is None for each in texts) and (told := without_prompts(model, [each.text for each in texts])):
        warnings.warn(told, DataWarning, stacklevel=stacklevel + 1)


def drawn(
    parts: Sequence[Part], cost: float, size: int, most: int | None = None, stacklevel: int = 4
) -> tuple[list[Text], int]:
    """Draw texts at random, each once, and count all; `cost` in passes through the model, `size` in bytes of a text."""
    room, draw = max(1000, min(most or _SAMPLE, _SAMPLE_BYTES // size)), random.Random(0)
    taken: list[Text] = []
    total = 0
    for total, text in enumerate(_different(parts), start=1):
        if total <= room:
            taken.append(text)
        elif (place := draw.randrange(total)) < room:
            taken[place] = text
    for part in parts:
        part.left_out.tell(stacklevel)
    if total < 3:
        raise ValueError(f"Alignment needs at least 3 different texts, and works best with thousands; got {total}.")
    draw.shuffle(taken)
    return taken[: max(_FEW, int(total * _PASSES / cost))], total


def _different(parts: Sequence[Part]) -> Iterator[Text]:
    """Yield each text once; with another prompt, it is another text."""
    seen: set[int] = set()
    for number, part in enumerate(parts):
        yield from (Text(part.prompt, text, number, row) for row, text in part.different(seen))


def embedded(
    every: EveryLayer, texts: Sequence[Text], route: str, batch_size: int, bar: Any
) -> Float[Tensor, "texts layers dim"]:
    """Embed texts by one route of the model; its name is empty if there is only one."""
    kwargs: dict[str, Any] = {"task": route} if route else {}
    embeddings = torch.empty(len(texts), len(every.depths), Pipeline.of(every).full.dim, **_KIND)
    by_prompt = sorted(range(len(texts)), key=lambda place: texts[place].prompt or "")
    for prompt, group in groupby(by_prompt, key=lambda place: texts[place].prompt):
        places = list(group)
        for start in range(0, len(places), _CHUNK):
            chunk = places[start : start + _CHUNK]
            found: Tensor = every.encode(
                [texts[place].text for place in chunk],
                prompt=prompt,
                batch_size=batch_size,
                convert_to_tensor=True,
                show_progress_bar=False,
                **kwargs,
            )
            embeddings[chunk] = found.float().cpu().view(len(chunk), *embeddings.shape[1:])
            bar.update(len(chunk))
    return embeddings


def _without_copies(gathered: dict[str, Gathered]) -> dict[str, Gathered]:
    """Drop near copies if few texts are different, because a copy tells nothing about the fit on its original."""
    first = next(iter(gathered.values()))
    apart = different(first.whole[:_COMPARED])
    if int(apart.sum()) < _FEW:
        for route in gathered.values():
            route.states = route.states[:_COMPARED][apart]
    return gathered
