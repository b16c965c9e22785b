"""Draw a sample of the texts and embed it at every depth: what maps are fitted on."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel
from torch import Tensor
from torch.nn.functional import normalize

from st_matryoshka2d.aligning.ridge import MANY
from st_matryoshka2d.aligning.rotation import Pairs, with_words_left_out
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.encoding.progress import progress
from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.texts import LeftOut, checked_text, chosen_prompt, require_finite, rows_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

_CHUNK = 4096  # texts embedded between updates of the progress bar
_SAMPLE_BYTES = 2**30  # of embeddings
_FEW = 2000  # texts that are embedded whatever it costs
_COPIES = 1000  # texts that are embedded again with words left out
_COMPARED = 4000  # texts whose median distance is measured
_BLOCK = 1024  # texts that are compared with all at once
_NEAR = 0.2  # near copies are closer than this share of the median squared distance
_KIND: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the user's defaults

Texts = Iterable[str] | Mapping[str, Iterable[str]]


class Part:
    """Texts with one prompt, read row by row; None for no prompt."""

    def __init__(self, texts: Any, prompt: str | None, name: str = "texts") -> None:
        self.prompt, self.name = prompt, name
        self.left_out = LeftOut(name)
        self._rows = rows_of(texts, name)

    def different(self, seen: set[int]) -> Iterator[tuple[int, Any]]:
        """Yield texts that were not seen with this prompt, with their rows, but no empty ones."""
        for place, row in enumerate(self._rows):
            if self.left_out.lacks(row):
                continue
            text = checked_text(row, f"{self.name}[{place}]")
            if (mark := hash((self.prompt, text))) not in seen:
                seen.add(mark)
                yield place, text


def parts_of(model: BaseModel, texts: Texts, prompt: str | None, prompt_name: str | None) -> list[Part]:
    """Give texts their prompts as `encode` does, those of a dict by key. Nothing is read yet."""
    if not isinstance(texts, Mapping):
        return [Part(texts, chosen_prompt(model, prompt, prompt_name))]
    if prompt is not None or prompt_name is not None:
        raise UsageError(
            "`texts` is a dict, whose keys name the prompts, so neither `prompt` nor `prompt_name` "
            f"can be given; got {prompt=} and {prompt_name=}."
        )
    if unknown := [name for name in texts if name not in model.prompts]:
        raise UsageError(
            "`texts` is a dict, whose keys must be names of the model's prompts, but "
            f"{unknown[0]!r} is none of {list(model.prompts)}. A column of a table is passed "
            "alone: table['text']."
        )
    return [Part(rows, model.prompts[name], f"texts[{name!r}]") for name, rows in texts.items()]


class Text(NamedTuple):
    """A text with its prompt, and where it stands: the number and the name of its part, and its row there."""

    prompt: str | None
    text: Any  # or a pair of texts, for a reranker
    part: int
    row: int
    name: str = "texts"

    @property
    def where(self) -> str:
        """Name the row in an error."""
        return f"{self.name}[{self.row}]"


def drawn(parts: Sequence[Part], most: int, size: int, cost: float = 1.0) -> tuple[list[Text], int]:
    """Draw texts at random, each once, and count all.

    Args:
        parts: Where they are read.
        most: Texts to draw.
        size: Bytes of a text's embeddings, which limit the number too.
        cost: Passes through the model for one text. All texts together get one pass for each.
    """
    room, draw = max(1000, min(most, _SAMPLE_BYTES // size)), random.Random(0)
    taken: list[Text] = []
    total = 0
    for total, text in enumerate(_different(parts), start=1):
        if total <= room:
            taken.append(text)
        elif (place := draw.randrange(total)) < room:
            taken[place] = text
    for part in parts:
        part.left_out.tell()
    if total < 3:
        few = "A fit needs at least 3 different texts, and works best with thousands"
        raise UsageError(f"{few}; got {total}.")
    draw.shuffle(taken)
    return taken[: max(_FEW, int(total / cost))], total


def _different(parts: Sequence[Part]) -> Iterator[Text]:
    """Yield each text once; with another prompt, it is another text."""
    seen: set[int] = set()
    for number, part in enumerate(parts):
        for row, text in part.different(seen):
            yield Text(part.prompt, text, number, row, part.name)


@dataclass
class Gathered:
    """Embeddings of texts by one route: before a final `Normalize`, in float32 on the CPU.

    Attributes:
        states: Embeddings at every depth.
        close: Some of the texts, and copies of them that lack some words, at every depth.
    """

    states: Float[Tensor, "texts layers dim"]
    close: Pairs

    @property
    def num_layers(self) -> int:
        """Depth of the whole model."""
        return self.states.shape[1]

    @property
    def whole(self) -> Float[Tensor, "texts dim"]:
        """Embeddings by the whole model."""
        return self.at(self.num_layers)

    def at(self, num_layers: int) -> Float[Tensor, "texts dim"]:
        """Embeddings at a depth."""
        return self.states[:, num_layers - 1]


def gather(
    pipeline: Pipeline, texts: Sequence[Text], batch_size: int, hidden: bool | None, *, close: bool = True
) -> dict[str, Gathered]:
    """Embed texts by each route of the model, and if close ones are needed, copies of some."""
    depth, dim = pipeline.full.num_layers, pipeline.full.dim
    every = EveryLayer.of(pipeline, range(1, depth + 1), normalize=False)
    places, copies = with_words_left_out([text.text for text in texts] if close else [], _COPIES)
    lacking = [texts[at]._replace(text=copy) for at, copy in zip(places, copies, strict=True)]
    gathered = {}
    steps = (len(texts) + len(lacking)) * len(pipeline.routes)
    with progress("Embedding texts", steps, "texts", hidden) as bar:
        for name in pipeline.routes:
            task = {"task": name} if name else {}  # the name is empty if there is only one
            states, copied = (
                embedded(every, some, depth * dim, batch_size, bar, **task).view(len(some), depth, dim)
                for some in (texts, lacking)
            )
            gathered[name] = Gathered(states, (states[places], copied))
    return gathered


def embedded(
    model: SentenceTransformer, texts: Sequence[Text], width: int, batch_size: int, bar: Any, **kwargs: Any
) -> Float[Tensor, "texts width"]:
    """Embed texts with their prompts."""
    embeddings = torch.empty(len(texts), width, **_KIND)
    by_prompt = sorted(range(len(texts)), key=lambda place: texts[place].prompt or "")
    for prompt, group in groupby(by_prompt, key=lambda place: texts[place].prompt):
        places = list(group)
        for start in range(0, len(places), _CHUNK):
            chunk = places[start : start + _CHUNK]
            rows: Tensor = model.encode(
                [texts[place].text for place in chunk],
                prompt=prompt,
                batch_size=batch_size,
                convert_to_tensor=True,
                show_progress_bar=False,
                **kwargs,
            )
            embeddings[chunk] = rows.float().cpu()
            bar.update(len(chunk))
    require_finite(embeddings, [text.text for text in texts], [text.where for text in texts])
    return embeddings


def warn_without_prompts(model: BaseModel, texts: Sequence[Text]) -> None:
    """Warn if a model declares prompts, and no text has one."""
    prompts = {name: prompt for name, prompt in model.prompts.items() if prompt and prompt.strip()}
    starts = (*prompts.values(),)
    if not prompts or any(text.prompt is not None or str(text.text).startswith(starts) for text in texts):
        return
    name, *others = dict.fromkeys([*prompts, *model.prompts])  # a model may have none for documents
    parts = ", ".join(f"{prompted!r}: [...]" for prompted in (name, *others[:1]))
    warn(
        f"The model declares prompts ({prompts}), but the texts have none. Use the prompt that "
        f"texts will be embedded with: prompt_name={name!r}; or with the texts of each prompt: {{{parts}}}.",
        DataWarning,
    )


def without_copies(gathered: Mapping[str, Gathered]) -> dict[str, Gathered]:
    """Drop near copies if few texts are different: no copy tells about the fit on its original."""
    apart = different(next(iter(gathered.values())).whole)
    if int(apart.sum()) > MANY:
        return dict(gathered)
    return {name: Gathered(route.states[apart], route.close) for name, route in gathered.items()}


def different(embedded: Float[Tensor, "texts dim"]) -> Bool[Tensor, " texts"]:
    """Mark the texts that are not near copies of earlier ones."""
    unit = normalize(embedded)
    some = unit[:_COMPARED]
    distances = 1 - some @ some.T
    near = _NEAR * distances[torch.ones_like(distances, dtype=torch.bool).triu(1)].median()
    copies = []
    for number, rows in enumerate(unit.split(_BLOCK)):
        copies.append((1 - rows @ unit.T <= near).tril(_BLOCK * number - 1).any(1))
    return ~torch.cat(copies)
