"""Embeddings at many sizes: from other processes they are those of this one, and some models and keywords are refused."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, benchmark_latency, encode_sizes, evaluate
from tests.support.sts import LocalSTS

TEXTS = ["a cat", "it rains in the north", "a red house"]
SIZES = ["1L-16d", "2L-32d"]


@pytest.mark.slow
def test_processes_on_given_devices_give_what_one_process_gives(tiny: SentenceTransformer) -> None:
    alone = encode_sizes(tiny, TEXTS, SIZES)
    together = encode_sizes(tiny, TEXTS, SIZES, device=["cpu"])
    for size, embeddings in alone.items():
        np.testing.assert_allclose(together[size], embeddings, atol=1e-6)


def test_a_pool_is_refused(tiny: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match=r"does not take \['pool'\].*device="):
        encode_sizes(tiny, TEXTS, SIZES, pool={"processes": [None]})


@pytest.mark.slow
def test_a_model_read_from_a_pickle_in_another_process_gives_its_layers(tiny: SentenceTransformer) -> None:
    """transformers registers recordable outputs when it builds a model, which that process has not done."""
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        elsewhere = workers.apply(encode_sizes, (tiny, TEXTS, SIZES))
    for size, embeddings in encode_sizes(tiny, TEXTS, SIZES).items():
        np.testing.assert_allclose(elsewhere[size], embeddings, atol=1e-6)


def test_tokenizer_without_padding_is_refused(tiny: SentenceTransformer) -> None:
    tiny.tokenizer.pad_token = None
    told = r"no padding token.*model\.tokenizer\.pad_token = model\.tokenizer\.eos_token"
    with pytest.raises(ValueError, match=told):
        encode_sizes(tiny, ["a cat", "a dog ran"], [Size(1, 8)])
    with pytest.raises(ValueError, match=told):
        evaluate(tiny, LocalSTS(), sizes=[Size(1, 8)], show_progress_bar=False)
    with pytest.raises(ValueError, match=told):
        benchmark_latency(tiny, 1, rounds=1)
    tiny.tokenizer.pad_token = "[SEP]"
    assert len(encode_sizes(tiny, ["a cat", "a dog ran"], [Size(1, 8)])[Size(1, 8)]) == 2
