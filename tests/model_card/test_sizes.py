"""Sizes in the cards of trained models and of cuts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CoSENTLoss

from st_matryoshka2d import Size, add_to_model_card, truncate
from st_matryoshka2d.losses import TwoDMSELoss
from st_matryoshka2d.model.declared_agreement import declare_agreement
from st_matryoshka2d.model.trained_sizes import declare_training
from tests.support import families
from tests.support.training import train


def test_the_card_of_a_trained_model(starbucks: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(starbucks, tmp_path / "folder"))
    before = (folder / "README.md").read_text(encoding="utf-8")
    add_to_model_card(folder)
    add_to_model_card(folder)
    card = (folder / "README.md").read_text(encoding="utf-8")
    for words, times in {
        "## Layers and dimensions": 1,
        "trained with `StarbucksLoss(MultipleNegativesRankingLoss)` ([paper](https://arxiv.org/abs/2410.13230)) at these": 1,
        "| 1 | 4 |\n| 2 | 8 |\n| 3 | 16 |\n| 4 | 8, 16, 32 |": 1,
        'load("you/trained", num_layers=2, dim=8)': 1,
        '`SentenceTransformer("you/trained", truncate_dim=16)`': 1,
        "not normalised again": 1,
        "@misc{zhuang2024starbucks": 1,  # added by sentence-transformers
    }.items():
        assert card.count(words) == times, words
    begin, end = card.index("<!-- trained sizes: begin"), card.index("## Training Details")
    assert card[:begin] + card[end:] == before, "all else is as it was"
    again = SentenceTransformer(str(folder), device="cpu")
    again.save_pretrained(str(tmp_path / "again"))
    assert (tmp_path / "again" / "README.md").read_text(encoding="utf-8") == card, "a model that is loaded keeps its card"


def test_the_card_of_a_cut(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.model_card_data.set_model_id("you/whole")
    train(tiny, TwoDMSELoss(tiny, CoSENTLoss(tiny)), tmp_path / "run", scored(), max_steps=1)
    small = truncate(truncate(tiny, num_layers=3, dim=16), num_layers=2)
    small.model_card_data.set_model_id("you/small")
    small.save_pretrained(str(tmp_path / "cut"))
    add_to_model_card(tmp_path / "cut")
    card = (tmp_path / "cut" / "README.md").read_text(encoding="utf-8")
    whole = "[you/whole](https://huggingface.co/you/whole)"
    for words in (
        f"cut from {whole}: the first 2 of 4 layers and the first 16 of 32 dimensions.",
        "The whole model was trained with `TwoDMSELoss(CoSENTLoss)` ([paper](https://arxiv.org/abs/2402.14776v1)). Of its",
        "| 1, 2 | 8, 16 |",
        'load("you/small", num_layers=1, dim=16)',
        "@misc{li20242d",
    ):
        assert words in card, words


def test_card_of_untrained_cut_suggests_trained_size(tiny: SentenceTransformer, tmp_path: Path) -> None:
    """The card suggests the narrower size with all layers and does not advise against the cut's own size."""
    declare_training(tiny.config, [Size(1, 4), Size(2, 8), Size(3, 16), Size(4, 32)], "align")
    with pytest.warns(
        UserWarning, match=r"not aligned for 2L-16d.*aligned for: 2L-8d \(smaller\), 3L-16d \(larger\)\. Score"
    ):
        truncate(tiny, num_layers=2, dim=16).save_pretrained(str(tmp_path))
    add_to_model_card(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "truncate_dim=8)`." in card
    assert "expect lower scores" not in card
    assert "Of the sizes that the whole model was aligned for, this cut has:" in card


def test_the_card_of_a_cut_below_all_that_was_trained(tiny: SentenceTransformer, tmp_path: Path) -> None:
    declare_training(tiny.config, [Size(2, 8), Size(4, 32)], "MultiSizeLoss(CoSENTLoss)")
    with pytest.warns(UserWarning, match="not trained at 1L-4d"):
        truncate(tiny, num_layers=1, dim=4).save_pretrained(str(tmp_path))
    add_to_model_card(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "cut from a larger model: the first of 4 layers and the first 4 of 32 dimensions." in card
    assert "trained with `MultiSizeLoss(CoSENTLoss)`, at no size within this cut." in card
    assert "load(" not in card


def test_the_cards_of_an_aligned_model_and_its_cut_have_what_sizes_keep(tiny: SentenceTransformer, tmp_path: Path) -> None:
    measured = {Size(2, 8): 0.7, Size(2, 16): 0.8125, Size(4, 8): 0.9, Size(4, 32): 1.0}
    declare_training(tiny.config, measured, "align")
    declare_agreement(tiny.config, measured)
    tables = {
        "whole": "| layers / dim | 8 | 16 | 32 |\n| ---: | ---: | ---: | ---: |\n"
        "| 2 | 0.700 | 0.812 |  |\n| 4 | 0.900 |  | 1.000 |",
        "cut": "| layers / dim | 8 | 16 |\n| ---: | ---: | ---: |\n| 2 | 0.700 | 0.812 |",
    }
    for (name, shown), model in zip(tables.items(), (tiny, truncate(tiny, num_layers=2, dim=16)), strict=True):
        model.save_pretrained(str(tmp_path / name))
        add_to_model_card(tmp_path / name)
        card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        assert f"by the size and by the whole model.\n\n{shown}\n\n" in card
    tiny.config.matryoshka_agreement = "much"
    tiny.save_pretrained(str(tmp_path / "foreign"))
    add_to_model_card(tmp_path / "foreign")
    assert "How well each size agrees" not in (tmp_path / "foreign" / "README.md").read_text(encoding="utf-8")


def test_refuses_folders_without_sizes(tiny: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="save the model there first"):
        add_to_model_card(tmp_path)
    tiny.save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="neither trained sizes nor a cut"):
        add_to_model_card(tmp_path)


def scored() -> Dataset:
    return Dataset.from_dict({"a": families.TEXTS, "b": families.TEXTS[::-1], "score": [0.1, 0.2, 0.3, 0.4, 0.5]})
