"""What a config declares: trained sizes, the loss, agreement, what it was cut from. A cut keeps what holds, or warns."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import BertConfig

from st_matryoshka2d import DataWarning, Size, align, benchmark_latency, encode_sizes, evaluate, load, sts_task, truncate
from st_matryoshka2d.losses import MIPICLoss, MultiSizeLoss, StarbucksLoss
from st_matryoshka2d.model.agreement_table import agreement_table, agreement_text
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.identity import model_revision
from tests.support import families
from tests.support.declared import declare, declare_training
from tests.support.losses import batch
from tests.support.pipelines import elastic
from tests.support.training import RECIPES

LADDER = ["1L-4d", "2L-8d", "3L-16d", "4L-32d"]
LISTS: dict[str, list[str]] = {
    "Starbucks": LADDER,
    "2DMSE": [f"{layers}L-{dim}d" for layers in (1, 2, 3, 4) for dim in (8, 16, 32)],
    "Espresso": ["1L-8d", "2L-8d", "3L-8d", "4L-8d", "4L-32d"],
    "MIPIC": ["4L-4d", "4L-8d", "4L-16d", "4L-32d"],
    "RelationalDistill": LADDER,
}
# per-layer lists have this length and are cut
AS_MANY_AS_LAYERS = [Size(1, 4), Size(1, 8), Size(2, 8), Size(4, 32)]
MEASURED = {Size(depth, dim): depth * dim / 128 for depth in (1, 2, 3, 4) for dim in (8, 16, 32)}

Cut = Callable[..., SentenceTransformer]


def cut_in_memory(folder: Path, **size: int) -> SentenceTransformer:
    return truncate(SentenceTransformer(str(folder), device="cpu"), **size)


def cut_while_loading(folder: Path, **size: int) -> SentenceTransformer:
    return load(folder, device="cpu", **size)


both_ways = pytest.mark.parametrize("cut", [cut_in_memory, cut_while_loading])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_loss_declares_its_sizes(tiny: SentenceTransformer, recipe: str) -> None:
    declare(tiny.config, agreement=MEASURED)
    loss = RECIPES[recipe](tiny)
    parts = loss(batch(tiny, 2))
    assert Declaration.of(tiny.config).agreement == MEASURED, "nothing is trained yet"
    sum(parts.values()).backward()
    assert tiny.config.matryoshka_sizes == LISTS[recipe]
    wrapped = "" if recipe == "RelationalDistill" else "(MultipleNegativesRankingLoss)"
    assert tiny.config.matryoshka_loss == f"{type(loss).__name__}{wrapped}"
    assert not hasattr(tiny.config, "matryoshka_agreement"), "training ends what was measured"


@pytest.mark.parametrize("settings", [{}, {"mini_batch_size": 2}], ids=["whole", "gradient caching"])
def test_declares_only_in_backward_pass(tiny: SentenceTransformer, settings: dict[str, int]) -> None:
    before = tiny.config.to_dict()
    tiny.train()
    loss = MIPICLoss(tiny, MultipleNegativesRankingLoss(tiny), **settings)
    assert tiny.config.to_dict() == before, "a loss that was built has trained nothing"
    loss.own.clear()  # causes a warning
    with torch.no_grad():
        loss(batch(tiny, 2))
    parts = loss(batch(tiny, 2))
    assert tiny.config.to_dict() == before, "computed, but nothing is trained yet"
    tiny.requires_grad_(False)
    loss(batch(tiny, 2)).backward()
    assert tiny.config.to_dict() == before, "what the loss itself trains is not in the model"
    tiny.requires_grad_(True)
    sum(parts.values()).backward()
    assert tiny.config.matryoshka_sizes == LISTS["MIPIC"]


@pytest.mark.filterwarnings("ignore:.* does not train the full size")
def test_losses_add_their_sizes_in_turn(tiny: SentenceTransformer) -> None:
    def loss(*sizes: Size) -> Any:
        return MultiSizeLoss(tiny, MultipleNegativesRankingLoss(tiny), list(sizes))(batch(tiny, 2))

    small, large = loss(Size(1, 8), Size(4, 32)), loss(Size(2, 8), Size(4, 32))
    large.backward()
    assert tiny.config.matryoshka_sizes == ["2L-8d", "4L-32d"]
    small.backward()
    assert tiny.config.matryoshka_sizes == ["1L-8d", "2L-8d", "4L-32d"]
    StarbucksLoss(tiny, MultipleNegativesRankingLoss(tiny))(batch(tiny, 2)).backward()
    loss(Size(2, 12)).backward()
    assert tiny.config.matryoshka_sizes == ["1L-4d", "1L-8d", "2L-8d", "2L-12d", "3L-16d", "4L-32d"]
    assert tiny.config.matryoshka_loss == "MultiSizeLoss(MultipleNegativesRankingLoss)"


def test_plain_sentence_transformers_reads_it(starbucks: Path) -> None:
    config = SentenceTransformer(str(starbucks), device="cpu").config
    assert type(config) is BertConfig
    assert (config.is_matryoshka, config.matryoshka_dimensions) == (True, [4, 8, 16, 32])
    assert config.matryoshka_sizes == ["1L-4d", "2L-8d", "3L-16d", "4L-8d", "4L-16d", "4L-32d"]
    assert config.matryoshka_loss == "StarbucksLoss(MultipleNegativesRankingLoss)"


def test_many_sizes_are_written_short_and_exactly() -> None:
    config: Any = BertConfig()
    every = {Size(layers, dim) for layers in range(1, 13) for dim in (8, 16, 32, 64, 128, 768)}
    declare_training(config, every, "a loss")
    assert config.matryoshka_sizes == {"num_layers": list(range(1, 13)), "dims": [8, 16, 32, 64, 128, 768]}
    assert set(Declaration.of(config).sizes) == set(Declaration.of(config.to_dict()).sizes) == every
    declare_training(config, [Size(3, 100)], "another")
    assert config.matryoshka_sizes["others"] == ["3L-100d"]
    assert set(Declaration.of(config).sizes) == set(Declaration.of(config.to_dict()).sizes) == every | {Size(3, 100)}
    apart = [Size(layer, dim) for layer in range(1, 71) for dim in (layer, layer + 1)]
    declare_training(unlike := BertConfig(), apart, "a loss")
    assert unlike.matryoshka_sizes == list(map(str, apart))


SIZES: list[Any] = [None, "8, 16", [8, 16], {"num_layers": 3}, ["4L"]]
AGREEMENTS: list[Any] = [None, 0.9, "0.9", ["4L-32d"], {"4L": 0.9}, {"4L-32d": None}, {"4L-32d": "x"}]


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        *(("matryoshka_sizes", entry) for entry in SIZES),
        *(("matryoshka_agreement", entry) for entry in [*AGREEMENTS, {"4L-32d": float("nan")}, {"4L-32d": 2}]),
    ],
)
def test_ignores_foreign_config_values(tiny: SentenceTransformer, key: str, entry: object) -> None:
    setattr(tiny.config, key, entry)
    assert (Declaration.of(tiny.config).sizes, Declaration.of(tiny.config).agreement) == ([], {})
    cut = truncate(tiny, num_layers=1, dim=9)
    assert cut.encode(["a cat"]).shape == (1, 9)
    assert not hasattr(cut.config, "matryoshka_agreement")


@both_ways
@pytest.mark.parametrize(
    ("size", "kept", "of"),
    [
        ({"num_layers": 3, "dim": 16}, ["1L-4d", "2L-8d", "3L-16d"], "3L-16d"),
        ({"dim": 8}, ["1L-4d", "2L-8d", "4L-8d"], "4L-8d"),
    ],
)
def test_a_cut_keeps_its_sizes_without_a_warning(
    starbucks: Path, cut: Cut, size: dict[str, int], kept: list[str], of: str, tmp_path: Path, recwarn: Any
) -> None:
    cut(starbucks, **size).save_pretrained(str(tmp_path))
    assert not [warning for warning in recwarn if "trained" in str(warning.message)]
    saved = json.loads((tmp_path / "config.json").read_text())
    assert (saved["matryoshka_sizes"], saved["matryoshka_loss"]) == (kept, "StarbucksLoss(MultipleNegativesRankingLoss)")
    layers = {"layers": [1, 3, 4]} if of.startswith("3L") else {}
    assert saved["matryoshka_cut"] == {"of": "4L-32d", "model": None, "size": of, **layers}


# What the config declares, a size, and what the warning must hold, or None if there is none.
WARNINGS: list[tuple[str, dict[str, int], str | None]] = [
    ("trained", {"num_layers": 2}, r"2L-32d with layers 1, 4,.*: 2L-8d \(smaller\), 3L-16d \(larger\)\."),
    ("trained", {"dim": 12}, r"4L-12d,.*: 4L-8d \(smaller\), 4L-16d \(larger\)\."),
    ("trained", {"num_layers": 1, "dim": 2}, r"1L-2d with layers 1,.*: 1L-4d \(larger\)\."),
    ("trained", {"num_layers": 4}, None),
    ("trained", {"dim": 16}, None),
    ("dims", {"dim": 4}, None),
    ("dims", {"dim": 3}, "a fifth"),
    ("nothing", {"num_layers": 3, "dim": 4}, "fewer layers"),
    ("nothing", {"dim": 6}, "a fifth"),
    ("nothing", {"dim": 7}, None),
    ("nothing", {"num_layers": 4}, None),
]


@both_ways
@pytest.mark.parametrize(("told", "size", "words"), WARNINGS)
def test_warns_once_at_the_caller_of_an_untrained_size(
    told: str, size: dict[str, int], words: str | None, cut: Cut, starbucks: Path, tiny: SentenceTransformer, tmp_path: Path
) -> None:
    if told == "dims":  # as sentence-transformers' own matryoshka losses
        tiny.config.is_matryoshka, tiny.config.matryoshka_dimensions = True, [4, 32]
    tiny.save_pretrained(str(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small = cut(starbucks if told == "trained" else tmp_path, **size)
    found = [warning for warning in caught if issubclass(warning.category, DataWarning)]
    assert [Path(warning.filename) for warning in found] == [Path(__file__)] * (words is not None)
    assert all(re.search(str(words), str(warning.message)) for warning in found)
    assert small.encode(["a cat"]).shape == (1, size.get("dim", 32))
    assert hasattr(small.config, "matryoshka_cut") is (size != {"num_layers": 4})
    if told == "dims":
        assert small.config.matryoshka_dimensions == ([4] if size["dim"] == 4 else [3])
        assert not hasattr(small.config, "matryoshka_sizes")


@both_ways
def test_a_cut_keeps_what_still_holds(cut: Cut, tiny: SentenceTransformer, tmp_path: Path) -> None:
    """A shallower cut of an aligned model has no readouts of the depths below its own."""
    declare_training(tiny.config, AS_MANY_AS_LAYERS, "a loss")
    declare(tiny.config, agreement=MEASURED)
    tiny.save_pretrained(str(tmp_path))

    def kept(**size: int) -> dict[Size, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Declaration.of(cut(tmp_path, **size).config).agreement

    assert kept(num_layers=3, dim=16) == {size: MEASURED[size] for size in (Size(3, 8), Size(3, 16))}
    assert kept(dim=20) == {size: value for size, value in MEASURED.items() if size.dim < 20}
    assert kept(num_layers=1, dim=4) == {}
    assert kept(num_layers=4) == Declaration.of(tiny.config).agreement == MEASURED
    assert cut(tmp_path, num_layers=2, dim=8).config.matryoshka_sizes == ["1L-4d", "1L-8d", "2L-8d"]
    elastic(tiny).save_pretrained(str(tmp_path / "elastic"))
    with pytest.warns(UserWarning, match="not trained at 3L-8d") as caught:
        small = load(tmp_path / "elastic", num_layers=3, dim=8, device="cpu", trust_remote_code=True)
    assert [Path(warning.filename) for warning in caught if "trained at" in str(warning.message)] == [Path(__file__)]
    assert small.config.matryoshka_sizes == ["1L-4d", "1L-8d", "2L-8d"]


def test_nothing_that_explores_sizes_warns(tiny: SentenceTransformer) -> None:
    """Scoring, timing and training cut a model on the way to better sizes."""
    pairs = {"sentence1": ["a cat", "rain"], "sentence2": ["a kitten", "snow"], "score": [5, 3]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        warnings.filterwarnings("ignore", "The times overlap")
        encode_sizes(tiny, ["a cat"], ["1L-4d", "2L-32d"])
        evaluate(tiny, sts_task(pairs), sizes=["1L-4d", "4L-32d"], documents="4L-32d", show_progress_bar=False)
        benchmark_latency(tiny, texts=["a cat"], rounds=1, show_progress_bar=False)
        MIPICLoss(tiny, MultipleNegativesRankingLoss(tiny))(batch(tiny, 2))
        aligned = align(tiny, [f"{one} {other}" for one in families.WORDS for other in families.WORDS])
        truncate(aligned, num_layers=2)
        truncate(aligned, "3L-8d")


def test_agreement_is_read_as_it_was_declared(tiny: SentenceTransformer, tmp_path: Path) -> None:
    before = model_revision(tiny)
    declare(tiny.config, agreement=MEASURED)
    declare(tiny.config, agreement={Size(4, 32): 1.0000001, Size(2, 16): 0.123456, Size(1, 10): -0.5})
    assert tiny.config.matryoshka_agreement == {"1L-10d": -0.5, "2L-16d": 0.1235, "4L-32d": 1.0}
    assert model_revision(tiny) == before, "it is no part of the revision"
    tiny.save_pretrained(str(tmp_path))
    plain = SentenceTransformer(str(tmp_path), device="cpu").config
    expected = {Size(1, 10): -0.5, Size(2, 16): 0.1235, Size(4, 32): 1.0}
    for config in (plain, plain.to_dict(), load(tmp_path, device="cpu").config):
        assert Declaration.of(config).agreement == expected
        assert list(Declaration.of(config).agreement) == sorted(expected)
    declare(tiny.config, agreement={})
    assert not hasattr(tiny.config, "matryoshka_agreement")


def test_a_table_of_agreement_has_the_largest_dims() -> None:
    measured = {Size(depth, dim): depth * dim / 10_000 for depth in (1, 12) for dim in (8, 16, 32, 64, 128, 256, 512)}
    head, rows = agreement_table({**measured, Size(12, 768): 1.0, Size(3, 8): 0.1})
    assert head == ["layers / dim", "32", "64", "128", "256", "512", "768"]
    assert rows == [
        ["1", "0.003", "0.006", "0.013", "0.026", "0.051", ""],
        ["12", "0.038", "0.077", "0.154", "0.307", "0.614", "1.000"],
    ]
    lines = agreement_text({Size(2, 8): 0.5, Size(3, 8): -0.25, Size(3, 16): 1.0}).splitlines()
    assert [line.split() for line in lines[2:]] == [["2", "0.500"], ["3", "-0.250", "1.000"]]
