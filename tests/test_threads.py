"""What a server calls from a pool of threads: right answers, and nothing of torch or of the model is changed for others."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import nn
from transformers import BertModel, PreTrainedModel

import st_matryoshka2d
from st_matryoshka2d import Size, TruncatedTransformer, encode_sizes, evaluate, load, truncate
from st_matryoshka2d._hosts.logs import filtered
from st_matryoshka2d.losses import StarbucksLoss
from st_matryoshka2d.model.depths import returning_states
from tests.support.declared import declare_layers
from tests.support.families import TEXTS
from tests.support.quick import quick
from tests.support.sts import LocalSTS

THREADS = 8
Embed = Callable[[SentenceTransformer], Any]


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run each call in a thread of its own, all from the same moment."""
    start = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def functions() -> dict[str, Any]:
    """Everything of torch and transformers that some way to build a model replaces."""
    owners: list[Any] = [torch, nn.init, nn.Module, PreTrainedModel]
    return {f"{owner.__name__}.{name}": value for owner in owners for name, value in vars(owner).items() if callable(value)}


@pytest.fixture(autouse=True)
def _nothing_stays_replaced() -> Iterator[None]:
    before, filters, dtype = functions(), list(warnings.filters), torch.get_default_dtype()
    yield
    assert functions() == before
    assert warnings.filters == filters
    assert torch.get_default_dtype() == dtype


def unknown(model: SentenceTransformer, cls: type[BertModel] | None = None) -> SentenceTransformer:
    """Copy a model as one of a class that was never cut before."""
    made = copy.deepcopy(model)
    made[0].model.__class__ = cls or type("Fresh", (BertModel,), {})
    return made


def by_truncate(model: SentenceTransformer) -> Any:
    return truncate(model, "2L-16d").encode(TEXTS)


def by_encode_sizes(model: SentenceTransformer) -> Any:
    return encode_sizes(model, TEXTS, ["1L-8d", "2L-16d"])[Size(2, 16)]


def by_depth(model: SentenceTransformer) -> Any:
    elastic = SentenceTransformer(modules=[TruncatedTransformer.from_transformer(model[0]), model[1]], device="cpu")
    return elastic.encode(TEXTS, num_layers=2, truncate_dim=16)


@pytest.mark.parametrize("rounds", quick([1, 5], 1))
@pytest.mark.parametrize("embed", [by_truncate, by_encode_sizes, by_depth])
def test_every_thread_gets_the_right_embeddings(embed: Embed, rounds: int, tiny: SentenceTransformer) -> None:
    by_hand = copy.deepcopy(tiny)
    first, *_, last = by_hand[0].model.encoder.layer
    by_hand[0].model.encoder.layer = nn.ModuleList([first, last])
    expected = by_hand.encode(TEXTS)[:, :16]
    for _ in range(rounds):
        model = unknown(tiny)
        for found in at_once([lambda model=model: embed(model)] * THREADS):
            assert np.abs(found - expected).max() <= 1e-6


def test_threads_that_load(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path))
    expected = truncate(tiny, "2L-16d").encode(TEXTS)
    for found in at_once([lambda: load(tmp_path, "2L-16d", device="cpu").encode(TEXTS)] * THREADS):
        assert np.abs(found - expected).max() <= 1e-6


def test_nothing_is_replaced_while_a_cut_is_checked(tiny: SentenceTransformer) -> None:
    """A class that looks around whenever one of it is built sees torch as it was."""
    before = functions()
    changed: list[list[str]] = []

    def build(self: BertModel, config: Any, **kwargs: Any) -> None:
        BertModel.__init__(self, config, **kwargs)
        changed.append([name for name, value in functions().items() if before.get(name) is not value])

    model = unknown(tiny, type("Watching", (BertModel,), {"__init__": build}))
    truncate(model, num_layers=2)
    encode_sizes(model, TEXTS, ["1L-8d"])
    StarbucksLoss(model, MultipleNegativesRankingLoss(model))
    assert changed, "no model was built, so nothing was checked"
    assert not any(changed)


def test_a_cut_is_checked_once_for_models_that_are_built_alike(tiny: SentenceTransformer) -> None:
    built: list[int] = []

    def build(self: BertModel, config: Any, **kwargs: Any) -> None:
        BertModel.__init__(self, config, **kwargs)
        built.append(config.num_hidden_layers)

    cls = type("Counted", (BertModel,), {"__init__": build})
    for _ in range(3):
        truncate(unknown(tiny, cls), num_layers=2)
    once = len(built)
    assert once > 0
    other = unknown(tiny, cls)
    other[0].model.config.layer_norm_eps = 0.1
    # its layers were built with another value
    with pytest.raises(ValueError, match="cannot be cut in depth exactly"):
        truncate(other, num_layers=2)
    assert len(built) > once


def test_a_changed_buffer_is_noticed_after_a_check(tiny: SentenceTransformer) -> None:
    """A saved cut would have the buffer that its config makes."""
    model = unknown(tiny)
    truncate(model, num_layers=2)
    with torch.no_grad():
        model[0].model.embeddings.position_ids.copy_(model[0].model.embeddings.position_ids.flip(1))
    with pytest.raises(ValueError, match="cannot be cut in depth exactly"):
        truncate(model, num_layers=2)


def test_the_model_is_as_it_was_whenever_it_is_called(tiny: SentenceTransformer) -> None:
    """Another thread may train the model, or read its states, while it is checked and embeds."""
    model = unknown(tiny).train()
    modes: set[bool] = set()
    asked: set[bool] = set()
    hooks: set[int] = set()

    def look(*_: Any) -> None:
        modes.update(module.training for module in model.modules())
        asked.add(bool(model[0].model.config.output_hidden_states))
        hooks.add(sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()))

    model[0].model.encoder.layer[0].register_forward_hook(look)
    truncate(model, num_layers=2)
    encode_sizes(model, TEXTS, ["1L-8d", "3L-8d"])
    StarbucksLoss(model, MultipleNegativesRankingLoss(model))
    assert modes == {True}
    assert asked == {False}
    assert hooks == {1}


def test_a_model_and_its_shorter_cut_in_two_threads(minilm: SentenceTransformer) -> None:
    texts = ["many words that go on and on, " * length for length in (1, 4, 9)]
    cut = truncate(minilm, num_layers=1)
    cut.max_seq_length = 16
    models = [minilm, cut] * 2
    expected = [model.encode(texts) for model in models]
    calls = [lambda model=model: [model.encode(texts) for _ in range(3)] for model in models]
    for right, found in zip(expected, at_once(calls), strict=True):
        assert all(np.abs(embeddings - right).max() <= 1e-5 for embeddings in found)


def test_contexts_that_overlap_restore_the_config(tiny: SentenceTransformer) -> None:
    config = tiny[0].model.config
    first, second = returning_states(config), returning_states(config)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert config.output_hidden_states, "the second context still needs it"
    second.__exit__(None, None, None)
    assert not config.output_hidden_states


def test_threads_share_a_model_whose_depths_skip_layers(tiny: SentenceTransformer) -> None:
    declare_layers(tiny[0].model.config, {1: [4], 2: [1, 4], 3: [1, 2, 4]})
    by_hand = copy.deepcopy(tiny)
    blocks = by_hand[0].model.encoder.layer
    by_hand[0].model.encoder.layer = nn.ModuleList([blocks[0], blocks[3]])
    groups = [[text] * (1 + place) for place, text in enumerate(TEXTS)]
    expected = [by_hand.encode(texts) for texts in groups]
    calls = [lambda texts=texts: encode_sizes(tiny, texts, ["2L-32d"])[Size(2, 32)] for texts in groups]
    for right, found in zip(expected, at_once(calls), strict=True):
        assert np.abs(found - right).max() <= 1e-6


def test_records_of_other_threads_are_not_filtered(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("somebody.elses")
    with filtered("somebody", lambda record: record.levelno >= logging.ERROR):
        logger.warning("hidden")
        at_once([lambda: logger.warning("of another thread")])
        logger.error("shown")
    logger.warning("afterwards")
    assert caplog.messages == ["of another thread", "shown", "afterwards"]


def test_evaluation_leaves_filters_and_levels_alone(tiny: SentenceTransformer) -> None:
    filters, level = list(warnings.filters), logging.getLogger("mteb").level
    seen: list[tuple[bool, bool]] = []

    def look(*_: Any) -> None:
        seen.append((warnings.filters == filters, logging.getLogger("mteb").level == level))

    tiny[0].model.encoder.layer[0].register_forward_hook(look)
    evaluate(tiny, LocalSTS(), sizes=["2L-8d", "4L-32d"])
    assert seen
    assert set(seen) == {(True, True)}


@pytest.mark.slow
def test_threads_that_import_at_once() -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor; import st_matryoshka2d as package\n"
        "from threading import Barrier\n"
        "names = [*package.__all__]; start = Barrier(len(names))\n"
        "def take(name): start.wait(); return getattr(package, name)\n"
        "with ThreadPoolExecutor(len(names)) as pool: print(len(list(pool.map(take, names))))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(len(st_matryoshka2d.__all__))]
