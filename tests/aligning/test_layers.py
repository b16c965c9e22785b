"""Layers that a depth keeps, chosen on texts: against a loop over models that are cut by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align, truncate
from st_matryoshka2d.aligning import layers as module
from st_matryoshka2d.aligning.sample import Gathered, Text
from st_matryoshka2d.model.pipeline import Pipeline
from tests.support.pipelines import TEXTS

pytestmark = pytest.mark.filterwarnings("ignore:.*too few", "ignore:Nothing says", "ignore:.*rotated")

SPLITS = {1: [[4], [1]], 2: [[1, 4], [1, 2], [3, 4]], 3: [[1, 3, 4], [1, 2, 4], [2, 3, 4], [1, 2, 3]]}
MANY = [f"{first} {second}" for first in TEXTS for second in TEXTS if first != second][:60]


def kept(aligned: SentenceTransformer) -> dict[int, list[int]]:
    return {int(depth): layers for depth, layers in aligned.config.matryoshka_layers.items()}


def deviations(model: SentenceTransformer, texts: list[str]) -> np.ndarray:
    rows = model.encode(texts)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(unit - unit.mean(0))


def closeness(cut: SentenceTransformer, whole: SentenceTransformer, texts: list[str]) -> float:
    one, other = deviations(cut, texts), deviations(whole, texts)
    return float(np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(one, other, strict=True)]))


@pytest.mark.parametrize("idle", [None, 1, 2, 3, 4])
def test_each_depth_keeps_the_layers_that_are_closest(idle: int | None, tiny: SentenceTransformer) -> None:
    """With a layer that does nothing, depths that keep it lack another."""
    if idle:
        block = tiny[0].model.encoder.layer[idle - 1]
        for last in (block.attention.output.dense, block.output.dense):
            torch.nn.init.zeros_(last.weight)
    found = kept(align(tiny, MANY, steps=0))
    for depth, splits in SPLITS.items():
        close = {tuple(split): closeness(truncate(tiny, layers=split), tiny, MANY) for split in splits}
        assert close[tuple(found[depth])] == pytest.approx(max(close.values()), abs=1e-6)


def test_few_texts_choose_nothing(tiny: SentenceTransformer) -> None:
    halves = {1: [4], 2: [1, 4], 3: [1, 3, 4]}
    assert kept(align(tiny, MANY[:49], steps=0)) == kept(align(tiny, MANY, layers="ends", steps=0)) == halves


def test_what_was_chosen_stays(tiny: SentenceTransformer) -> None:
    aligned = align(tiny, MANY, layers={2: [2, 3]}, steps=0)
    assert kept(aligned)[2] == kept(align(aligned, MANY, steps=0))[2] == [2, 3]


def test_only_the_beginning_of_some_texts_is_read(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    gather = module.gather

    def reading(model: Pipeline, texts: list[Text], *rest: Any, **named: Any) -> dict[str, Gathered]:
        read.extend(text.text for text in texts)
        return gather(model, texts, *rest, **named)

    monkeypatch.setattr(module, "gather", reading)
    align(tiny, [f"{text} " * 40 for text in [*MANY, *map(str, range(200))]], steps=0)
    assert len(read) == 5 * 128
    assert max(map(len, read)) == 300
