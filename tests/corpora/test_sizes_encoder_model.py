"""An encoder uses the weights and settings of its model now, and in a worker those that it had when it was pickled."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from st_matryoshka2d import SizesEncoder, truncate
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from tests.support import families
from tests.support.families import TEXTS

SIZE = "3L-8d"


def train(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(model.preprocess(TEXTS))["sentence_embedding"].square().sum().backward()
    optimizer.step()


def write_data(model: Any) -> None:
    for weight in model.parameters():
        weight.data.mul_(1.1)  # no version counter of torch notices this


def replace_data(model: Any) -> None:
    for weight in model.parameters():
        weight.data = weight.data * 1.1


def load_state(model: Any) -> None:
    model.load_state_dict({name: 1.1 * weight for name, weight in model.state_dict().items()}, assign=True)


def add_token(model: Any) -> None:
    model.tokenizer.add_tokens(["cat sat"])  # in a spare row of the vocabulary
    model[0].model.resize_token_embeddings(len(model.tokenizer))


def default_prompt(model: Any) -> None:
    model.prompts["query"] = "the old "
    model.default_prompt_name = "query"


CHANGES: dict[str, Callable[[Any], object]] = {
    "a training step": train,
    "data written": write_data,
    "data replaced": replace_data,
    "state loaded": load_state,
    "half precision": lambda model: model.bfloat16(),
    "a new token": add_token,
    "max_seq_length": lambda model: setattr(model, "max_seq_length", 4),
    "a default prompt": default_prompt,
    "the prompt left out": lambda model: (default_prompt(model), model.set_pooling_include_prompt(False)),
    "length one": lambda model: model.append(Normalize()),
}


def embedded(model: SentenceTransformer) -> NDArray[np.float32]:
    """What a cut of a copy gives, without an encoder."""
    return truncate(copy.deepcopy(model), SIZE).encode(TEXTS)


def column(encoder: SizesEncoder) -> NDArray[np.float32]:
    return encoder.encode(TEXTS)[SIZE]


def in_a_worker(sent: bytes) -> NDArray[np.float32]:
    """As a process that has run other encoders, or copies of this one, does with a task."""
    return column(pickle.loads(sent))


@pytest.mark.parametrize("what", CHANGES)
def test_the_vectors_are_those_of_the_model_when_it_was_pickled(what: str, tiny: SentenceTransformer) -> None:
    encoder = SizesEncoder(tiny, [SIZE])
    before, revision, sent = embedded(tiny), encoder.revision, pickle.dumps(encoder)
    np.testing.assert_allclose(in_a_worker(sent), before, atol=1e-6)
    np.testing.assert_allclose(column(encoder), before, atol=1e-6)
    CHANGES[what](tiny)
    after, sent_after = embedded(tiny), pickle.dumps(encoder)
    assert np.abs(after.astype(np.float32) - before).max() > 1e-3
    np.testing.assert_allclose(in_a_worker(sent_after), after, atol=1e-6)
    np.testing.assert_allclose(column(encoder), after, atol=1e-6)
    # an older task that comes later
    np.testing.assert_allclose(in_a_worker(sent), before, atol=1e-6)
    assert encoder.revision != revision
    assert [pickle.loads(each).revision for each in (sent, sent_after)] == [revision, encoder.revision]


def test_a_worker_makes_an_unchanged_model_once(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SizesEncoder(tiny, [SIZE])
    made: list[object] = []
    of = EveryLayer.of
    monkeypatch.setattr(EveryLayer, "of", lambda model, depths: made.append(model) or of(model, depths))
    for _ in range(3):
        in_a_worker(pickle.dumps(encoder))
    assert len(made) <= 1  # none if an earlier test had a model like this one


def test_a_copy_does_not_follow_the_model(tiny: SentenceTransformer) -> None:
    before = embedded(tiny)
    copied = copy.deepcopy(SizesEncoder(tiny, [SIZE]))
    train(tiny)
    np.testing.assert_allclose(column(copied), before, atol=1e-6)


def test_a_process_pool_does_not_share_the_models_memory(tiny: SentenceTransformer) -> None:
    """The pickler of `multiprocessing` moves tensors into shared memory, where training would change a worker's weights."""
    ForkingPickler.dumps(SizesEncoder(tiny, [SIZE]))
    assert not any(weight.is_shared() for weight in tiny.parameters())


@pytest.mark.slow
def test_a_pool_of_processes_follows_training(tiny: SentenceTransformer) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        encoder = SizesEncoder(tiny, [SIZE])
        for _ in range(3):
            np.testing.assert_allclose(pool.apply(encoder, ({"text": TEXTS},))[SIZE], embedded(tiny), atol=1e-6)
            train(tiny)


def test_threads_share_an_encoder(tiny: SentenceTransformer) -> None:
    encoder = SizesEncoder(tiny, [SIZE])
    wanted = {text: vector for text, vector in zip(TEXTS, embedded(tiny), strict=True)}
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda text: (text, encoder.encode([text])[SIZE][0]), TEXTS * 8))
    for text, vector in found:
        np.testing.assert_allclose(vector, wanted[text], atol=1e-6)


def test_a_family_without_shared_layers(tmp_path: Any) -> None:
    """ALBERT repeats one block, so the depth is only in its config."""
    albert = families.pipeline(families.CONFIGS["albert"](), tmp_path, "mean", dense=None, normalize=False)
    encoder = SizesEncoder(albert, [SIZE])
    train(albert)
    np.testing.assert_allclose(in_a_worker(pickle.dumps(encoder)), embedded(albert), atol=1e-6)
