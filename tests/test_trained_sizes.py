"""A saved model tells at which sizes it was trained, by which loss, and what it was cut from."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss
from transformers import BertConfig

from st_matryoshka2d import Size, TruncatedTransformer, load, truncate
from st_matryoshka2d.config_metadata import declare_training, nearest, trained_sizes
from st_matryoshka2d.losses import MIPICLoss, MultiSizeLoss, StarbucksLoss, TwoDMSELoss
from st_matryoshka2d.model_card import add_sizes_to_model_card
from tests import families
from tests.losses_support import batch
from tests.training_support import RECIPES, train

LADDER = ["1L-4d", "2L-8d", "3L-16d", "4L-32d"]
EVERY = [f"{layers}L-{dim}d" for layers in (1, 2, 3, 4) for dim in (8, 16, 32)]

AS_MANY_AS_LAYERS = [Size(1, 4), Size(1, 8), Size(2, 8), Size(4, 32)]  # lists of that length are cut with the layers

Cut = Callable[..., SentenceTransformer]
LISTS: dict[str, list[str]] = {
    "Starbucks": LADDER,
    "2DMSE": EVERY,
    "Espresso": ["1L-8d", "2L-8d", "3L-8d", "4L-8d", "4L-32d"],
    "MIPIC": ["4L-4d", "4L-8d", "4L-16d", "4L-32d"],
    "RelationalDistill": LADDER,
}


@pytest.fixture(scope="module")
def starbucks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained on Starbucks' ladder, plus two narrower dims at full depth, and saved."""
    folder = tmp_path_factory.mktemp("starbucks")
    model = families.pipeline(families.CONFIGS["bert"](), folder / "bert", pooling="mean", dense=None, normalize=False)
    sizes = [*map(Size.parse, LADDER), Size(4, 8), Size(4, 16)]
    train(model, StarbucksLoss(model, MultipleNegativesRankingLoss(model), sizes), folder / "run", max_steps=1)
    model.model_card_data.set_model_id("you/trained")
    model.save_pretrained(str(folder / "saved"))
    return folder / "saved"


def cut_in_memory(folder: Path, **size: int) -> SentenceTransformer:
    return truncate(SentenceTransformer(str(folder), device="cpu"), **size)


def cut_while_loading(folder: Path, **size: int) -> SentenceTransformer:
    return load(folder, device="cpu", **size)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_a_loss_trains_is_declared(tiny: SentenceTransformer, recipe: str) -> None:
    loss = RECIPES[recipe](tiny)
    loss(batch(tiny, 2)).backward()
    assert tiny.config.matryoshka_sizes == LISTS[recipe]
    wrapped = "" if recipe == "RelationalDistill" else "(MultipleNegativesRankingLoss)"
    assert tiny.config.matryoshka_loss == f"{type(loss).__name__}{wrapped}"


@pytest.mark.parametrize("settings", [{}, {"mini_batch_size": 2}], ids=["whole", "gradient caching"])
def test_only_a_backward_pass_declares(tiny: SentenceTransformer, settings: dict[str, int]) -> None:
    before = tiny.config.to_dict()
    tiny.train()
    loss = MIPICLoss(tiny, MultipleNegativesRankingLoss(tiny), **settings)
    loss.own.clear()  # which is warned of
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


def test_losses_that_take_turns_declare_what_each_trained(tiny: SentenceTransformer) -> None:
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


@pytest.mark.parametrize("entry", [None, [], "8, 16", [8, 16], {"num_layers": 3}, 7, ["4L"]])
def test_what_others_write_under_that_name_declares_nothing(tiny: SentenceTransformer, entry: object) -> None:
    tiny.config.matryoshka_sizes = entry
    assert trained_sizes(tiny.config) == []
    assert truncate(tiny, num_layers=1, dim=9).encode(["a cat"]).shape == (1, 9)


@pytest.mark.parametrize("cut", [cut_in_memory, cut_while_loading])
class TestCuts:
    """The same, cut in memory or while loading."""

    @pytest.mark.parametrize(
        ("size", "kept"),
        [
            ({"num_layers": 3, "dim": 16}, ["1L-4d", "2L-8d", "3L-16d"]),
            ({"num_layers": 4, "dim": 8}, ["1L-4d", "2L-8d", "4L-8d"]),
            ({"dim": 8}, ["1L-4d", "2L-8d", "4L-8d"]),
            ({"num_layers": 1, "dim": 4}, ["1L-4d"]),
        ],
    )
    def test_a_cut_keeps_the_trained_sizes_within(
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
            ({"num_layers": 2, "dim": 4}, "2L-4d, .*: 1L-4d (smaller), 2L-8d (larger)."),
            ({"dim": 12}, "4L-12d, .*: 4L-8d (smaller), 4L-16d (larger)."),
            ({"num_layers": 1, "dim": 2}, "1L-2d, .*: 1L-4d (larger)."),
        ],
    )
    def test_another_size_is_warned_of_once_where_it_was_asked_for(
        self, starbucks: Path, cut: Cut, size: dict[str, int], words: str
    ) -> None:
        with pytest.warns(UserWarning, match="not trained at") as caught:
            small = cut(starbucks, **size)
        told = [warning for warning in caught if "not trained at" in str(warning.message)]
        assert len(told) == 1
        assert Path(told[0].filename) == Path(__file__)
        size_words, neighbours = words.split(", .*: ")
        assert f"not trained at {size_words}," in str(told[0].message)
        assert f"The nearest sizes that it was trained at: {neighbours} `evaluate` says" in str(told[0].message)
        assert small.encode(["a cat"]).shape == (1, size.get("dim", 32))

    @pytest.mark.parametrize("size", [{"num_layers": 4, "dim": 32}, {"num_layers": 4}, {"dim": 32}, {"dim": 16}])
    def test_the_whole_and_a_trained_dim_are_not_warned_of(self, starbucks: Path, cut: Cut, size: dict[str, int]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            small = cut(starbucks, **size)
        assert hasattr(small.config, "matryoshka_cut") == (size == {"dim": 16})

    def test_sizes_are_not_taken_for_settings_of_layers(self, tiny: SentenceTransformer, cut: Cut, tmp_path: Path) -> None:
        declare_training(tiny.config, AS_MANY_AS_LAYERS, "a loss")
        tiny.save_pretrained(str(tmp_path))
        assert cut(tmp_path, num_layers=2, dim=8).config.matryoshka_sizes == ["1L-4d", "1L-8d", "2L-8d"]
        assert cut(tmp_path, dim=8, num_layers=1).config.matryoshka_sizes == ["1L-4d", "1L-8d"]

    def test_a_model_that_says_nothing_of_sizes_is_not_warned_of(
        self, tiny: SentenceTransformer, cut: Cut, tmp_path: Path
    ) -> None:
        """As those that were saved when only the dims were declared."""
        tiny.config.is_matryoshka, tiny.config.matryoshka_dimensions = True, [4, 32]
        tiny.save_pretrained(str(tmp_path))
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            small = cut(tmp_path, num_layers=2, dim=8)
        assert small.config.matryoshka_dimensions == [4, 8]
        assert not hasattr(small.config, "matryoshka_sizes")
        assert not hasattr(small.config, "matryoshka_loss")


def test_a_full_size_that_was_not_trained_is_not_warned_of(tiny: SentenceTransformer) -> None:
    tiny.train()
    MultiSizeLoss(tiny, MultipleNegativesRankingLoss(tiny), [Size(2, 8)])(batch(tiny, 2)).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        truncate(tiny, num_layers=4)
    with pytest.warns(UserWarning, match=r"not trained at 4L-31d.*at: 2L-8d \(smaller\)\. "):
        truncate(tiny, dim=31)


def test_a_truncated_transformer_is_warned_of_once(tiny: SentenceTransformer, tmp_path: Path) -> None:
    declare_training(tiny.config, AS_MANY_AS_LAYERS, "a loss")
    tiny[0] = TruncatedTransformer.from_transformer(tiny[0])
    tiny.save_pretrained(str(tmp_path))
    with pytest.warns(UserWarning, match="not trained at 3L-8d") as caught:
        small = load(tmp_path, num_layers=3, dim=8, device="cpu", trust_remote_code=True)
    assert [Path(warning.filename) for warning in caught if "not trained at" in str(warning.message)] == [Path(__file__)]
    assert small.config.matryoshka_sizes == ["1L-4d", "1L-8d", "2L-8d"]


def test_the_nearest_is_the_nearest_in_layers_and_then_in_dims() -> None:
    trained = [Size(2, 64), Size(4, 8), Size(4, 64), Size(4, 256), Size(8, 8), Size(8, 100)]
    for size, expected in {
        Size(5, 90): [Size(4, 64), Size(8, 100)],
        Size(4, 100): [Size(4, 64), Size(4, 256)],
        Size(1, 1): [Size(2, 64)],
        Size(9, 1): [Size(8, 8)],
    }.items():
        assert nearest(size, trained) == expected


def test_the_card_of_a_trained_model(starbucks: Path, tmp_path: Path) -> None:
    before = (starbucks / "README.md").read_text(encoding="utf-8")
    add_sizes_to_model_card(starbucks)
    add_sizes_to_model_card(starbucks)
    card = (starbucks / "README.md").read_text(encoding="utf-8")
    for words, times in {
        "## Layers and dimensions": 1,
        "trained by `StarbucksLoss(MultipleNegativesRankingLoss)` ([paper](https://arxiv.org/abs/2410.13230)) at these": 1,
        "| 1 | 4 |\n| 2 | 8 |\n| 3 | 16 |\n| 4 | 8, 16, 32 |": 1,
        'load("you/trained", num_layers=2, dim=8)': 1,
        '`SentenceTransformer("you/trained", truncate_dim=16)`': 1,
        "not normalised again": 1,
        "@misc{zhuang2024starbucks": 1,  # sentence-transformers puts it there
    }.items():
        assert card.count(words) == times, words
    begin, end = card.index("<!-- trained sizes: begin"), card.index("## Training Details")
    assert card[:begin] + card[end:] == before, "all else is as it was"
    again = SentenceTransformer(str(starbucks), device="cpu")
    again.save_pretrained(str(tmp_path))
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == card, "a model that is loaded keeps its card"


def test_the_card_of_a_cut(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.model_card_data.set_model_id("you/whole")
    train(tiny, TwoDMSELoss(tiny, CoSENTLoss(tiny)), tmp_path / "run", scored(), max_steps=1)
    small = truncate(truncate(tiny, num_layers=3, dim=16), num_layers=2)
    small.model_card_data.set_model_id("you/small")
    small.save_pretrained(str(tmp_path / "cut"))
    add_sizes_to_model_card(tmp_path / "cut")
    card = (tmp_path / "cut" / "README.md").read_text(encoding="utf-8")
    whole = "[you/whole](https://huggingface.co/you/whole)"
    for words in (
        f"cut from {whole}: the first 2 of 4 layers and the first 16 of 32 dimensions.",
        "Of the sizes at which the whole was trained by `TwoDMSELoss(CoSENTLoss)` ([paper](https://arxiv.org/abs/2402.14776v1))",
        "| 1, 2 | 8, 16 |",
        'load("you/small", num_layers=1, dim=16)',
        "@misc{li20242d",
    ):
        assert words in card, words


def test_the_card_of_a_cut_beside_what_was_trained(tiny: SentenceTransformer, tmp_path: Path) -> None:
    """The narrower size with all of its layers is the one to try, and its own is not spoken against."""
    declare_training(tiny.config, [Size(1, 4), Size(2, 8), Size(3, 16), Size(4, 32)], "align")
    with pytest.warns(
        UserWarning, match=r"not aligned for 2L-16d.*aligned for: 2L-8d \(smaller\), 3L-16d \(larger\)\. `eval"
    ):
        truncate(tiny, num_layers=2, dim=16).save_pretrained(str(tmp_path))
    add_sizes_to_model_card(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "truncate_dim=8)`." in card
    assert "expect less" not in card
    assert "Of the sizes for which the whole model was aligned, these are within it:" in card


def test_the_card_of_a_cut_below_all_that_was_trained(tiny: SentenceTransformer, tmp_path: Path) -> None:
    declare_training(tiny.config, [Size(2, 8), Size(4, 32)], "MultiSizeLoss(CoSENTLoss)")
    with pytest.warns(UserWarning, match="not trained at 1L-4d"):
        truncate(tiny, num_layers=1, dim=4).save_pretrained(str(tmp_path))
    add_sizes_to_model_card(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "cut from a larger model: the first of 4 layers and the first 4 of 32 dimensions." in card
    assert "trained by `MultiSizeLoss(CoSENTLoss)`, at no size that is within this one." in card
    assert "load(" not in card


def test_there_is_nothing_to_add_to_a_card(tiny: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="save the model there first"):
        add_sizes_to_model_card(tmp_path)
    tiny.save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="neither `matryoshka_sizes` nor `matryoshka_cut`"):
        add_sizes_to_model_card(tmp_path)


def scored() -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"a": families.TEXTS, "b": families.TEXTS[::-1], "score": [0.1, 0.2, 0.3, 0.4, 0.5]})
