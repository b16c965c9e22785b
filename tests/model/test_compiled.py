"""`torch.compile` in place is taken; its wrappers are refused, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from st_matryoshka2d import Size, TruncatedTransformer, align, encode_sizes, truncate
from tests.support.families import TEXTS


def wrapper(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


def around_the_first_module(tiny: SentenceTransformer) -> Any:
    return SentenceTransformer(modules=[wrapper(tiny[0]), tiny[1]], device="cpu")


def around_the_network(tiny: SentenceTransformer) -> Any:
    tiny[0].model = wrapper(tiny[0].model)
    return tiny


def around_every_layer(tiny: SentenceTransformer) -> Any:
    layers = tiny[0].model.encoder.layer
    for place, layer in enumerate(list(layers)):
        layers[place] = wrapper(layer)
    return tiny


WRAPPED: dict[str, Callable[[SentenceTransformer], Any]] = {
    "SentenceTransformer is": wrapper,
    "Transformer is": around_the_first_module,
    "BertModel is": around_the_network,
    r"BertLayer \(encoder.layer.0\) is": around_every_layer,
}
USES: list[Callable[[Any], Any]] = [
    lambda model: truncate(model, num_layers=2),
    lambda model: encode_sizes(model, TEXTS, ["2L-8d"]),
    lambda model: align(model, TEXTS),
]


@pytest.mark.parametrize("words", WRAPPED)
def test_wrapper_is_refused_with_the_way_out(words: str, tiny: SentenceTransformer) -> None:
    wrapped = WRAPPED[words](tiny)
    for use in USES:
        with pytest.raises(TypeError, match=rf"^{words} wrapped by torch.compile.*`_orig_mod`.*`model.compile\(\)`"):
            use(wrapped)


def test_call_time_depth_refuses_wrapper(tiny: SentenceTransformer) -> None:
    with pytest.raises(TypeError, match=r"BertModel is wrapped by torch.compile"):
        TruncatedTransformer.from_transformer(around_the_network(tiny)[0])


@pytest.mark.parametrize("what", ["pipeline", "module", "network", "layers"])
def test_model_compiled_in_place_is_cut(what: str, tiny: SentenceTransformer) -> None:
    expected = {size: truncate(tiny, size).encode(TEXTS) for size in (Size(2, 8), Size(4, 32))}
    network = tiny[0].model
    parts = {"pipeline": [tiny], "module": [tiny[0]], "network": [network], "layers": [*network.encoder.layer]}
    for part in parts[what]:
        part.compile(backend="eager")
    for size, embeddings in encode_sizes(tiny, TEXTS, [*expected]).items():
        assert np.abs(embeddings - expected[size]).max() < 1e-6
        assert np.abs(truncate(tiny, size).encode(TEXTS) - expected[size]).max() < 1e-6
