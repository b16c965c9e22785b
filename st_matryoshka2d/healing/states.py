"""Read states within a network while texts pass through it, batch by batch."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from typing import Any, NamedTuple

from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn

from st_matryoshka2d.aligning.sample import Text
from st_matryoshka2d.healing.blocks import state_of


class Place(NamedTuple):
    """What a module reads, or what it returns."""

    module: nn.Module
    is_input: bool


class Batches:
    """Texts or pairs of about the same length, with their prompts, as a model reads them, in random order."""

    def __init__(self, model: BaseModel, texts: Sequence[Text], batch_size: int) -> None:
        ordered = sorted(texts, key=lambda text: (text.prompt or "", -length(text.text)))
        self._model, self._batches = model, []
        for prompt, group in groupby(ordered, key=lambda text: text.prompt):
            rows = [text.text for text in group]
            self._batches += [(prompt, rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
        random.Random(0).shuffle(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for prompt, rows in self._batches:
            yield batch_to_device(self._model.preprocess(rows, prompt=prompt), self._model.device)


def length(text: str | tuple[str, str]) -> int:
    """Return the characters of a text, or of a pair."""
    return len(text) if isinstance(text, str) else sum(map(len, text))


class _ReachedError(Exception):
    """All that was wanted has been read."""


def read(model: BaseModel, features: dict[str, Any], places: Sequence[Place]) -> list[Tensor]:
    """Run a model, with hooks on its own modules, until it has been at all places; return what real tokens have there."""
    found: dict[int, Tensor] = {}

    def note(number: int, state: Tensor) -> None:
        found[number] = state
        if len(found) == len(places):
            raise _ReachedError  # the layers after it are not needed

    with ExitStack() as hooks:
        for number, (module, is_input) in enumerate(places):
            if is_input:
                hook = module.register_forward_pre_hook(lambda _, args, number=number: note(number, args[0]))
            else:
                hook = module.register_forward_hook(lambda _, __, out, number=number: note(number, state_of(out)))
            hooks.enter_context(hook)
        with suppress(_ReachedError):
            next(model.children())(dict(features))
    real = features["attention_mask"].bool()
    return [found[number][real].float() for number in range(len(places))]


class Reached(NamedTuple):
    """A batch, and the states that it has at some places of the whole model."""

    features: dict[str, Any]
    states: Mapping[Place, Tensor]


def reached(model: BaseModel, batches: Batches, places: Collection[Place], room: int, bar: Any) -> list[Reached]:
    """Read a model and keep the states, until they fill so many bytes."""
    found: list[Reached] = []
    for features in batches:
        if room <= 0:
            break
        states = dict(zip(places, read(model, features, [*places]), strict=True))
        room -= sum(state.nbytes for state in states.values())
        found.append(Reached(features, states))
        bar.update()
    return found


def tokens_of_texts(features: dict[str, Any]) -> Tensor:
    """Return for each real token, in the order of `read`, how many its text has; one column."""
    mask: Tensor = features["attention_mask"].bool()
    return mask.sum(1, keepdim=True).expand_as(mask)[mask][:, None].float()
