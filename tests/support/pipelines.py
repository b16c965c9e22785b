"""Pipelines with every kind of head, routers and elastic depth, and checks for them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router

from st_matryoshka2d import Size, TruncatedTransformer
from st_matryoshka2d.model.readout import Readout
from tests.support import families


def routed(tiny: SentenceTransformer, *, shared: bool) -> SentenceTransformer:
    documents = list(tiny.children())
    queries = documents if shared else list(copy.deepcopy(tiny).children())
    if not shared:
        with torch.no_grad():
            for parameter in queries[0].parameters():
                parameter.add_(0.02)
    router = Router.for_query_document(query_modules=queries, document_modules=documents)
    return SentenceTransformer(modules=[router, Normalize()], device="cpu")


TEXTS = [" ".join(random.Random(n).choices(families.WORDS, k=2 + n % 7)) for n in range(40)]
OTHERS = ["red river", "the old house", "a bird flew over the road", "new"]
Array = NDArray[np.float32]


def made(pooling: str | tuple[str, ...], dense: int | None, normalize: bool, folder: Path) -> SentenceTransformer:
    return families.pipeline(families.CONFIGS["bert"](), folder / "weights", pooling, dense, normalize)


def normalized(model: SentenceTransformer) -> SentenceTransformer:
    return SentenceTransformer(modules=[*model.children(), Normalize()], device="cpu")


def normalize_within(tiny: SentenceTransformer) -> SentenceTransformer:
    ways = [[*copy.deepcopy(tiny).children(), Normalize()] for _ in range(2)]
    with torch.no_grad():
        ways[0][0].model.embeddings.word_embeddings.weight.mul_(1.1)
    return SentenceTransformer(modules=[Router.for_query_document(*ways)], device="cpu")  # type: ignore[arg-type]


KINDS: dict[str, Callable[[SentenceTransformer, Path], SentenceTransformer]] = {
    "mean": lambda tiny, _: tiny,
    "mean, unit": lambda tiny, _: normalized(tiny),
    "cls, unit": lambda _, folder: made("cls", None, True, folder),
    "last token": lambda _, folder: made("lasttoken", None, False, folder),
    "three poolings, Dense, unit": lambda _, folder: made(("cls", "mean", "lasttoken"), 24, True, folder),
    "Dense": lambda _, folder: made("mean", 40, False, folder),
    "router": lambda tiny, _: routed(tiny, shared=False),
    "router, one Transformer": lambda tiny, _: routed(tiny, shared=True),
    "router, unit within": lambda tiny, _: normalize_within(tiny),
    "elastic": lambda tiny, _: elastic(tiny),
}


def elastic(model: SentenceTransformer) -> SentenceTransformer:
    model[0] = TruncatedTransformer.from_transformer(model[0])
    return model


def tasks(model: SentenceTransformer) -> list[str | None]:
    return list(model[0].sub_modules) if isinstance(model[0], Router) else [None]


def products(model: SentenceTransformer, task: str | None = None) -> Array:
    """Return dot products, which depend on lengths as well as angles."""
    found = model.encode(OTHERS, task=task)
    return found @ found.T


def readouts(model: SentenceTransformer) -> list[Readout]:
    return [module for module in model.modules() if isinstance(module, Readout)]


def equal(left: SentenceTransformer, right: SentenceTransformer) -> bool:
    states = left.state_dict(), right.state_dict()
    return states[0].keys() == states[1].keys() and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def require_same_rows(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare the embeddings of texts in any order, but require those of each text once."""
    left, right = found.flatten(1), expected.flatten(1)
    places = torch.cdist(left, right).argmin(1)
    assert sorted(places.tolist()) == list(range(len(right)))
    torch.testing.assert_close(left, right[places], atol=1e-5, rtol=0)


def turned(aligned: SentenceTransformer) -> SentenceTransformer:
    """Rotate all sizes by hand, as `align` does where that is better: then the full size also has a map that matters."""
    with torch.no_grad():
        for readout in readouts(aligned):
            dim = readout.linear.out_features
            turn, _ = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(0)))
            for linear in (readout.linear, *map(readout.at, readout.depths)):
                linear.weight.copy_(turn @ linear.weight)
                linear.bias.copy_(turn @ linear.bias)
    return aligned


SIZES = [Size(1, 4), Size(2, 6), Size(3, 16)]


def without_words_for(model: SentenceTransformer, *words: str) -> None:
    """Break the model for texts with these words: their embeddings are not finite."""
    with torch.no_grad():
        model[0].model.get_input_embeddings().weight[model.tokenizer.convert_tokens_to_ids(list(words))] = torch.nan


def with_one_river(place: int) -> list[str]:
    """Return texts of which one alone, at this place, has the word "river"."""
    texts = [text.replace("river", "road") for text in TEXTS]
    return [*texts[:place], "the red river", *texts[place:]]
