"""The model's name in the card's section of sizes, and entries inherited from another model's card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import GridResult, Size, add_to_model_card, align, truncate
from st_matryoshka2d.model.trained_sizes import declare_training
from tests.support.training import train

TEXTS = [f"{n} cats and {n % 7} dogs" for n in range(20)]


@pytest.fixture
def grid() -> GridResult:
    row = {"task": "T", "split": "test", "subset": "default", "metric": "accuracy", "is_main": True, "score": 0.5}
    return GridResult(pd.DataFrame([{**row, "num_layers": 2, "dim": 8}]))


@pytest.mark.parametrize("quote", ["'", '"'])
def test_name_is_the_id_that_card_loads(grid: GridResult, tmp_path: Path, quote: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Mine\n\nmodel = SentenceTransformer({quote}org/mine{quote})\n", encoding="utf-8")
    add_to_model_card(tmp_path, grid)
    assert 'small = load("org/mine", num_layers=2, dim=8)' in readme.read_text(encoding="utf-8")


def test_the_name_can_be_set_before_saving(grid: GridResult, tiny: SentenceTransformer, tmp_path: Path) -> None:
    model = truncate(tiny, num_layers=3)
    for name in (None, "you/name"):
        if name is not None:
            model.model_card_data.set_model_id(name)
        model.save_pretrained(str(tmp_path))
        add_to_model_card(tmp_path, grid)
        card = (tmp_path / "README.md").read_text(encoding="utf-8")
        assert f'small = load("{name or "sentence_transformers_model_id"}", num_layers=2, dim=8)' in card


def test_the_grid_of_a_deeper_model_is_refused(grid: GridResult, tiny: SentenceTransformer, tmp_path: Path) -> None:
    truncate(tiny, num_layers=1).save_pretrained(str(tmp_path))
    before = (tmp_path / "README.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"The grid has 2 layers, the model in .* has 1"):
        add_to_model_card(tmp_path, grid)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("derive", "base"),
    [(lambda tiny: align(tiny, TEXTS), None), (lambda tiny: truncate(tiny, num_layers=2, dim=8), "org/base")],
)
def test_card_of_untrained_model_has_its_name_and_does_not_say_trained(
    derive: Callable[[SentenceTransformer], SentenceTransformer], base: str | None, tiny: SentenceTransformer, tmp_path: Path
) -> None:
    tiny.model_card_data.base_model = base
    model = derive(tiny)
    model.model_card_data.set_model_id("you/help-desk")
    model.save_pretrained(str(tmp_path))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "\n# you/help-desk\n" in card
    add_to_model_card(tmp_path)
    first = (tmp_path / "README.md").read_text(encoding="utf-8").partition("\n# you/help-desk\n")[2].strip().splitlines()[0]
    assert "trained" not in first
    assert "finetuned" not in first
    after = f" based on [{base}](https://huggingface.co/{base})" if base else ""
    assert first.startswith(f"This is a [sentence-transformers](https://www.SBERT.net) model{after}. It maps inputs to a ")


def test_scores_have_number_of_queries_or_pairs(tiny: SentenceTransformer, tmp_path: Path) -> None:
    row = {"split": "test", "metric": "m", "is_main": True, "score": 0.5, "num_layers": 2, "dim": 8}
    places = [("A", "en", 7), ("A", "de", 1200), ("B", "default", None)]  # B: such as a classification
    frame = pd.DataFrame([{**row, "task": task, "subset": subset} for task, subset, _ in places])
    frame = pd.concat([frame, frame.assign(num_layers=3)])
    items = [
        {**row, "num_layers": layers, "task": task, "subset": subset, "ids": ["x"] * n, "values": [0.5] * n, "gold": None}
        for task, subset, n in places
        for layers in (2, 3)
        if n is not None
    ]
    truncate(tiny, num_layers=3).save_pretrained(str(tmp_path))
    add_to_model_card(tmp_path, GridResult(frame, pd.DataFrame(items).drop(columns=["metric", "is_main", "score"])))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "Scores in percent: m, mean of A (n = 1,207) and B.\n" in card


def test_card_explains_loading_once(grid: GridResult, tiny: SentenceTransformer, tmp_path: Path) -> None:
    declare_training(tiny.config, [Size(2, 8), Size(4, 32)], "StarbucksLoss(CoSENTLoss)")
    tiny.save_pretrained(str(tmp_path))
    add_to_model_card(tmp_path)
    for _ in range(2):
        add_to_model_card(tmp_path, grid)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.count("small = load(") == 1
    assert card.count("![Scores by layers and dimensions]") == 1


@pytest.mark.parametrize("change", [lambda model: truncate(model, num_layers=2, dim=8), lambda model: align(model, TEXTS)])
def test_license_data_and_settings_of_training_are_inherited(
    tiny: SentenceTransformer, tmp_path: Path, change: Callable[[SentenceTransformer], SentenceTransformer]
) -> None:
    tiny.model_card_data.set_license("cc-by-4.0")
    tiny.model_card_data.set_language("nl")
    train(tiny, MultipleNegativesRankingLoss(tiny), tmp_path / "run", max_steps=1, learning_rate=3e-4)
    tiny.model_card_data.set_model_id("you/whole")
    made = change(tiny)
    made.save_pretrained(str(tmp_path / "made"))
    card = (tmp_path / "made" / "README.md").read_text(encoding="utf-8")
    for words in ("license: cc-by-4.0", "- nl", "learning_rate`: 0.0003", "### Training Dataset", "generated_from_trainer"):
        assert words in card, words
    assert '"you/whole"' not in card, "it is not that model"
    made.model_card_data.add_tags("mine")
    assert "mine" not in tiny.model_card_data.tags


def test_cut_of_unsaved_aligned_model_has_no_origin(tiny: SentenceTransformer) -> None:
    tiny.config.name_or_path = "org/model"
    assert truncate(tiny, num_layers=2, dim=8).config.matryoshka_cut["model"] == "org/model"
    assert truncate(align(tiny, TEXTS, [Size(2, 8)], steps=1), num_layers=2, dim=8).config.matryoshka_cut["model"] is None
