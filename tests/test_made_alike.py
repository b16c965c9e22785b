"""What a cut or a rotation takes over from the model it is made of, beside its modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import nn

from st_matryoshka2d import Size, TruncatedTransformer, rotate, truncate
from st_matryoshka2d.encode import EveryLayer
from st_matryoshka2d.losses.distillation import frozen_copy
from tests.families import TEXTS

Make = Callable[[SentenceTransformer], SentenceTransformer]

MAKERS: dict[str, Make] = {
    "cut": lambda model: truncate(model, 2, 8),
    "narrow cut": lambda model: truncate(model, dim=8),
    "every layer": lambda model: EveryLayer.of(model, [2]),
    "rotation": lambda model: rotate(model, TEXTS, [Size(2, 8)], steps=2),
}


@pytest.fixture
def loaded(tiny_folder: Path) -> SentenceTransformer:
    """As sentence-transformers loads it: the pipeline in training mode, the backbone, which has dropout, is not."""
    return SentenceTransformer(str(tiny_folder), device="cpu")


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def twice(model: SentenceTransformer, **kwargs: Any) -> list[torch.Tensor]:
    return [model(model.preprocess(TEXTS), **kwargs)["sentence_embedding"] for _ in range(2)]


@pytest.mark.parametrize("name", MAKERS)
def test_two_forwards_of_a_loaded_model_agree(loaded: SentenceTransformer, name: str) -> None:
    loaded[0].model.embeddings.dropout.p = 0.5
    assert loaded.training, "what sentence-transformers loads is in training mode"
    assert torch.equal(*twice(MAKERS[name](loaded)))


@pytest.mark.parametrize("name", MAKERS)
def test_every_module_keeps_its_mode(loaded: SentenceTransformer, name: str) -> None:
    kept = ["", "0", "1", "0.model", "0.model.encoder.layer.0", "0.model.encoder.layer.1.output.dropout"]
    loaded[0].model.encoder.layer[1].output.dropout.training = True
    for change in (lambda: loaded, loaded.train, loaded.eval):
        before = modes(change())
        made = modes(MAKERS[name](loaded))
        assert [made[path] for path in kept] == [before[path] for path in kept]
        assert all(mode == before.get(path, before["1"]) for path, mode in made.items())
        assert modes(loaded) == before


def test_routes_keep_their_modes(loaded: SentenceTransformer) -> None:
    routed = SentenceTransformer(modules=[Router.for_query_document(list(loaded), list(truncate(loaded, dim=8)))])
    routed.eval()
    assert not any(modes(truncate(routed, 2)).values())


def test_a_depth_at_call_time_changes_no_mode(loaded: SentenceTransformer) -> None:
    loaded[0] = TruncatedTransformer.from_transformer(loaded[0])
    assert torch.equal(*twice(loaded, num_layers=2))
    plain, before = modes(loaded[0].to_transformer(2)), modes(loaded[0])
    assert all(mode == before[path] for path, mode in plain.items())
    assert not any(modes(frozen_copy(loaded)).values()), "a teacher is frozen as it encodes"
