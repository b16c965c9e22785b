"""The config of a saved model records its trained sizes, its loss, and the model it was cut from."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import BertConfig

from st_matryoshka2d import (
    DataWarning,
    Size,
    TruncatedTransformer,
    align,
    benchmark_latency,
    encode_sizes,
    evaluate,
    load,
    sts_task,
    truncate,
)
from st_matryoshka2d.losses import MIPICLoss, MultiSizeLoss, StarbucksLoss
from st_matryoshka2d.model.trained_sizes import declare_training, nearest, trained_sizes
from tests.support import families
from tests.support.losses import batch
from tests.support.training import RECIPES

LADDER = ["1L-4d", "2L-8d", "3L-16d", "4L-32d"]
EVERY = [f"{layers}L-{dim}d" for layers in (1, 2, 3, 4) for dim in (8, 16, 32)]

AS_MANY_AS_LAYERS = [Size(1, 4), Size(1, 8), Size(2, 8), Size(4, 32)]  # per-layer lists have this length and are cut

Cut = Callable[..., SentenceTransformer]
LISTS: dict[str, list[str]] = {
    "Starbucks": LADDER,
    "2DMSE": EVERY,
    "Espresso": ["1L-8d", "2L-8d", "3L-8d", "4L-8d", "4L-32d"],
    "MIPIC": ["4L-4d", "4L-8d", "4L-16d", "4L-32d"],
    "RelationalDistill": LADDER,
}


def cut_in_memory(folder: Path, **size: int) -> SentenceTransformer:
    return truncate(SentenceTransformer(str(folder), device="cpu"), **size)


def cut_while_loading(folder: Path, **size: int) -> SentenceTransformer:
    return load(folder, device="cpu", **size)


@pytest.mark.parametrize("recipe", RECIPES)
def test_loss_declares_trained_sizes(tiny: SentenceTransformer, recipe: str) -> None:
    loss = RECIPES[recipe](tiny)
    loss(batch(tiny, 2)).backward()
    assert tiny.config.matryoshka_sizes == LISTS[recipe]
    wrapped = "" if recipe == "RelationalDistill" else "(MultipleNegativesRankingLoss)"
    assert tiny.config.matryoshka_loss == f"{type(loss).__name__}{wrapped}"


@pytest.mark.parametrize("settings", [{}, {"mini_batch_size": 2}], ids=["whole", "gradient caching"])
def test_declares_only_in_backward_pass(tiny: SentenceTransformer, settings: dict[str, int]) -> None:
    before = tiny.config.to_dict()
    tiny.train()
    loss = MIPICLoss(tiny, MultipleNegativesRankingLoss(tiny), **settings)
    loss.own.clear()  # causes a warning
    with torch.no_grad():
        loss(batch(tiny, 2))
    with pytest.raises(ValueError, match="reads 2 or more"):
        loss(batch(tiny, 1))
    parts = loss(batch(tiny, 2))
    assert tiny.config.to_dict() == before, "computed, but nothing is trained yet"
    tiny.requires_grad_(False)
    loss(batch(tiny, 2)).backward()
    assert tiny.config.to_dict() == before, "what the loss itself trains is not in the model"
    tiny.requires_grad_(True)
    sum(parts.values()).backward()
    assert tiny.config.matryoshka_sizes == LISTS["MIPIC"]


def test_alternating_losses_declare_their_own_sizes(tiny: SentenceTransformer) -> None:
    small, large = (
        MultiSizeLoss(tiny, MultipleNegativesRankingLoss(tiny), [Size(layers, 8), Size(4, 32)]) for layers in (1, 2)
    )
    both = [loss(batch(tiny, 2)) for loss in (small, large)]
    both[1].backward()
    assert tiny.config.matryoshka_sizes == ["2L-8d", "4L-32d"]
    both[0].backward()
    assert tiny.config.matryoshka_sizes == ["1L-8d", "2L-8d", "4L-32d"]


def test_plain_sentence_transformers_reads_it(starbucks: Path) -> None:
    config = SentenceTransformer(str(starbucks), device="cpu").config
    assert type(config) is BertConfig
    assert config.matryoshka_sizes == ["1L-4d", "2L-8d", "3L-16d", "4L-8d", "4L-16d", "4L-32d"]
    assert config.matryoshka_loss == "StarbucksLoss(MultipleNegativesRankingLoss)"
    modules = json.loads((starbucks / "modules.json").read_text())
    assert all(module["type"].startswith("sentence_transformers.") for module in modules)


@pytest.mark.filterwarnings("ignore:.* does not train the full size")
def test_a_second_loss_adds_its_sizes_and_its_name(tiny: SentenceTransformer) -> None:
    StarbucksLoss(tiny, MultipleNegativesRankingLoss(tiny))(batch(tiny, 2)).backward()
    MultiSizeLoss(tiny, MultipleNegativesRankingLoss(tiny), [Size(2, 8), Size(2, 12)])(batch(tiny, 2)).backward()
    assert tiny.config.matryoshka_sizes == ["1L-4d", "2L-8d", "2L-12d", "3L-16d", "4L-32d"]
    assert tiny.config.matryoshka_loss == "MultiSizeLoss(MultipleNegativesRankingLoss)"


def test_many_sizes_are_written_short_and_exactly() -> None:
    config: Any = BertConfig()
    every = {Size(layers, dim) for layers in range(1, 13) for dim in (8, 16, 32, 64, 128, 768)}
    declare_training(config, every, "a loss")
    assert config.matryoshka_sizes == {"num_layers": list(range(1, 13)), "dims": [8, 16, 32, 64, 128, 768]}
    assert set(trained_sizes(config)) == set(trained_sizes(config.to_dict())) == every
    declare_training(config, [Size(3, 100)], "another")
    assert config.matryoshka_sizes["others"] == ["3L-100d"]
    assert set(trained_sizes(config)) == set(trained_sizes(config.to_dict())) == every | {Size(3, 100)}
    apart = [Size(layer, dim) for layer in range(1, 71) for dim in (layer, layer + 1)]
    declare_training(unlike := BertConfig(), apart, "a loss")
    assert unlike.matryoshka_sizes == list(map(str, apart))


@pytest.mark.parametrize("entry", [None, "8, 16", [8, 16], {"num_layers": 3}, ["4L"]])
def test_ignores_foreign_config_values(tiny: SentenceTransformer, entry: object) -> None:
    tiny.config.matryoshka_sizes = entry
    assert trained_sizes(tiny.config) == []
    assert truncate(tiny, num_layers=1, dim=9).encode(["a cat"]).shape == (1, 9)


@pytest.mark.parametrize("cut", [cut_in_memory, cut_while_loading])
class TestCuts:
    """Cut in memory or while loading."""

    @pytest.mark.parametrize(
        ("size", "kept"),
        [
            ({"num_layers": 3, "dim": 16}, ["1L-4d", "2L-8d", "3L-16d"]),
            ({"dim": 8}, ["1L-4d", "2L-8d", "4L-8d"]),
        ],
    )
    def test_cut_keeps_smaller_trained_sizes(
        self, starbucks: Path, cut: Cut, size: dict[str, int], kept: list[str], tmp_path: Path, recwarn: Any
    ) -> None:
        cut(starbucks, **size).save_pretrained(str(tmp_path))
        assert not [warning for warning in recwarn if "trained" in str(warning.message)], "each of these was trained"
        saved = json.loads((tmp_path / "config.json").read_text())
        assert (saved["matryoshka_sizes"], saved["matryoshka_loss"]) == (
            kept,
            "StarbucksLoss(MultipleNegativesRankingLoss)",
        )
        assert saved["matryoshka_cut"] == {
            "of": "4L-32d",
            "model": None,
            "size": f"{size.get('num_layers', 4)}L-{size['dim']}d",
        }

    @pytest.mark.parametrize(
        ("size", "words"),
        [
            ({"num_layers": 2}, "2L-32d, .*: 2L-8d (smaller), 3L-16d (larger)."),
            ({"dim": 12}, "4L-12d, .*: 4L-8d (smaller), 4L-16d (larger)."),
            ({"num_layers": 1, "dim": 2}, "1L-2d, .*: 1L-4d (larger)."),
        ],
    )
    def test_warns_once_of_untrained_size_at_caller(
        self, starbucks: Path, cut: Cut, size: dict[str, int], words: str
    ) -> None:
        with pytest.warns(UserWarning, match="not trained at") as caught:
            small = cut(starbucks, **size)
        told = [warning for warning in caught if "not trained at" in str(warning.message)]
        assert len(told) == 1
        assert Path(told[0].filename) == Path(__file__)
        size_words, neighbours = words.split(", .*: ")
        assert f"not trained at {size_words}," in str(told[0].message)
        assert f"The nearest sizes that it was trained at: {neighbours} Score" in str(told[0].message)
        assert small.encode(["a cat"]).shape == (1, size.get("dim", 32))

    @pytest.mark.parametrize("size", [{"num_layers": 4}, {"dim": 32}, {"dim": 16}])
    def test_no_warning_for_full_size_and_trained_dim(self, starbucks: Path, cut: Cut, size: dict[str, int]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            small = cut(starbucks, **size)
        assert hasattr(small.config, "matryoshka_cut") == (size == {"dim": 16})

    def test_sizes_are_not_treated_as_per_layer_settings(self, tiny: SentenceTransformer, cut: Cut, tmp_path: Path) -> None:
        declare_training(tiny.config, AS_MANY_AS_LAYERS, "a loss")
        tiny.save_pretrained(str(tmp_path))
        assert cut(tmp_path, num_layers=2, dim=8).config.matryoshka_sizes == ["1L-4d", "1L-8d", "2L-8d"]
        assert cut(tmp_path, dim=8, num_layers=1).config.matryoshka_sizes == ["1L-4d", "1L-8d"]

    def test_no_warning_for_declared_dims(self, tiny: SentenceTransformer, cut: Cut, tmp_path: Path) -> None:
        """For example models trained with sentence-transformers' own matryoshka losses."""
        tiny.config.is_matryoshka, tiny.config.matryoshka_dimensions = True, [4, 32]
        tiny.save_pretrained(str(tmp_path))
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            small = cut(tmp_path, dim=4)
        with pytest.warns(DataWarning, match="less than a fifth of its dims"):
            cut(tmp_path, dim=3)
        assert small.config.matryoshka_dimensions == [4]
        assert not hasattr(small.config, "matryoshka_sizes")
        assert not hasattr(small.config, "matryoshka_loss")

    @pytest.mark.parametrize(
        ("size", "lost"),
        [({"num_layers": 3, "dim": 4}, "fewer layers"), ({"dim": 6}, "a fifth")],
    )
    def test_warns_once_of_a_model_that_was_neither_aligned_nor_trained(
        self, tiny: SentenceTransformer, cut: Cut, size: dict[str, int], lost: str, tmp_path: Path
    ) -> None:
        tiny.save_pretrained(str(tmp_path))
        with pytest.warns(DataWarning, match="Nothing says that this model was aligned or trained for") as told:
            cut(tmp_path, **size)
        assert [Path(one.filename) for one in told] == [Path(__file__)]
        assert lost in str(told[0].message)

    @pytest.mark.parametrize("size", [{"num_layers": 4}, {"dim": 7}])
    def test_no_warning_for_cuts_that_lose_little(
        self, tiny: SentenceTransformer, cut: Cut, size: dict[str, int], tmp_path: Path
    ) -> None:
        tiny.save_pretrained(str(tmp_path))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cut(tmp_path, **size)


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


@pytest.mark.filterwarnings("ignore:.* does not train the full size")
def test_no_warning_for_untrained_full_size(tiny: SentenceTransformer) -> None:
    tiny.train()
    MultiSizeLoss(tiny, MultipleNegativesRankingLoss(tiny), [Size(2, 8)])(batch(tiny, 2)).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        truncate(tiny, num_layers=4)
    with pytest.warns(UserWarning, match=r"not trained at 4L-31d.*at: 2L-8d \(smaller\)\. "):
        truncate(tiny, dim=31)


def test_truncated_transformer_warns_once(tiny: SentenceTransformer, tmp_path: Path) -> None:
    declare_training(tiny.config, AS_MANY_AS_LAYERS, "a loss")
    tiny[0] = TruncatedTransformer.from_transformer(tiny[0])
    tiny.save_pretrained(str(tmp_path))
    with pytest.warns(UserWarning, match="not trained at 3L-8d") as caught:
        small = load(tmp_path, num_layers=3, dim=8, device="cpu", trust_remote_code=True)
    assert [Path(warning.filename) for warning in caught if "not trained at" in str(warning.message)] == [Path(__file__)]
    assert small.config.matryoshka_sizes == ["1L-4d", "1L-8d", "2L-8d"]


def test_nearest_size_is_by_layers_then_dims() -> None:
    trained = [Size(2, 64), Size(4, 8), Size(4, 64), Size(4, 256), Size(8, 8), Size(8, 100)]
    for size, expected in {
        Size(5, 90): [Size(4, 64), Size(8, 100)],
        Size(4, 100): [Size(4, 64), Size(4, 256)],
        Size(1, 1): [Size(2, 64)],
        Size(9, 1): [Size(8, 8)],
    }.items():
        assert nearest(size, trained) == expected
