"""What a card says of sizes, sides and scores, and what it inherits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss

from st_matryoshka2d import GridResult, Size, add_to_model_card, align, asymmetric, fit_queries, truncate
from st_matryoshka2d.losses import TwoDMSELoss
from st_matryoshka2d.model.declaration import Declaration
from tests.support import families
from tests.support.declared import declare, declare_training
from tests.support.pipelines import TEXTS, normalized, routed
from tests.support.training import train

COUNTED = [f"{n} cats and {n % 7} dogs" for n in range(20)]


def card_of(model: SentenceTransformer, folder: Path, *grid: GridResult) -> str:
    """Save a model and add to its card, again without effect; return the card."""
    model.save_pretrained(str(folder))
    cards = []
    for _ in range(2):
        add_to_model_card(folder, *grid)
        cards.append((folder / "README.md").read_text(encoding="utf-8"))
    assert cards[0] == cards[1]
    return cards[0]


@pytest.fixture
def grid() -> GridResult:
    row = {"task": "T", "split": "test", "subset": "default", "metric": "accuracy", "is_main": True, "score": 0.5}
    return GridResult(pd.DataFrame([{**row, "num_layers": 2, "dim": 8}]))


@pytest.mark.filterwarnings("ignore:Of texts that were left out")
def test_a_smaller_vocabulary_is_told(tiny: SentenceTransformer, tmp_path: Path) -> None:
    small = truncate(tiny, vocabulary={"de": ["a cat sat", "the dog"] * 10, "en": ["on the mat"]})
    card = card_of(small, tmp_path)
    assert card.count("## Vocabulary") == 1
    rows, whole = small.config.vocab_size, tiny.config.vocab_size
    assert f"This model has {rows} of the {whole} tokens" in card
    assert "| de | 20 | 100.0% |  |" in card
    assert "| en | 1 |  |  |" in card, "nothing was left out of it"


def test_a_graph_beside_the_model_is_told(tiny: SentenceTransformer, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(bytes(250_000))
    (tmp_path / "onnx_embedder.json").write_text("{}", encoding="utf-8")
    assert card_of(tiny, tmp_path).count("## ONNX\n\n`model.onnx`, 0.2 MB, is this model as one graph") == 1


def test_a_folder_with_a_graph_alone_gets_a_card(grid: GridResult, tmp_path: Path) -> None:
    folder = tmp_path / "small-onnx"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(bytes(250_000))
    about = {
        "int8": True,
        "base_model": "org/whole",
        "matryoshka_cut": {"size": "3L-8d", "of": "6L-8d", "layers": [1, 5, 6]},
    }
    (folder / "onnx_embedder.json").write_text(json.dumps(about), encoding="utf-8")
    for _ in range(2):
        add_to_model_card(folder)
    with pytest.raises(ValueError, match="Score the file itself"):
        add_to_model_card(folder, grid)
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "onnx"
    assert card.data.base_model == "org/whole"
    assert card.text.count("# small-onnx\n\n") == 1
    assert card.text.count("`model.onnx`, 0.2 MB, is this model as one graph in 8 bits") == 1
    assert "## ONNX\n\nThis model was cut from a larger model: layers 1, 5, 6 of 6" in card.text
    assert 'OnnxEmbedder.load("small-onnx")' in card.text


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
        assert f'small = load("{name or tmp_path.name}", num_layers=2, dim=8)' in card_of(model, tmp_path, grid)


def test_the_grid_of_a_deeper_model_is_refused(grid: GridResult, tiny: SentenceTransformer, tmp_path: Path) -> None:
    truncate(tiny, num_layers=1).save_pretrained(str(tmp_path))
    before = (tmp_path / "README.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"The grid has 2 layers, the model in .* has 1"):
        add_to_model_card(tmp_path, grid)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("derive", "base"),
    [(lambda tiny: align(tiny, COUNTED), None), (lambda tiny: truncate(tiny, num_layers=2, dim=8), "org/base")],
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
    # B: such as a classification
    places = [("A", "en", 7), ("A", "de", 1200), ("B", "default", None)]
    frame = pd.DataFrame([{**row, "task": task, "subset": subset} for task, subset, _ in places])
    frame = pd.concat([frame, frame.assign(num_layers=3)])
    items = [
        {**row, "num_layers": layers, "task": task, "subset": subset, "ids": ["x"] * n, "values": [0.5] * n, "gold": None}
        for task, subset, n in places
        for layers in (2, 3)
        if n is not None
    ]
    scores = GridResult(frame, pd.DataFrame(items).drop(columns=["metric", "is_main", "score"]))
    card = card_of(truncate(tiny, num_layers=3), tmp_path, scores)
    assert "Scores in percent: m, mean of A (n = 1,207) and B.\n" in card


@pytest.mark.parametrize("change", [lambda model: truncate(model, num_layers=2, dim=8), lambda model: align(model, COUNTED)])
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
    assert truncate(align(tiny, COUNTED, [Size(2, 8)], steps=1), num_layers=2, dim=8).config.matryoshka_cut["model"] is None


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_the_card_names_both_sides(family: str, tmp_path: Path) -> None:
    model = families.pipeline(families.CONFIGS[family](), tmp_path / "weights", "mean", dense=None, normalize=True)
    model.model_card_data.license = "mit"
    made = asymmetric(align(model, TEXTS, steps=0), "1L-8d")
    made.model_card_data.set_model_id("me/small-queries")
    card = card_of(made, tmp_path / "made")
    for words, times in {
        "## Queries and documents": 1,
        "in one space: 1 layer for queries, 4 layers for documents.": 1,
        'load("me/small-queries", route="query")': 1,
        "\n- asymmetric\n": 1,
        "license: mit": 1,
        "model.encode_document": 2,  # once by sentence-transformers
        "## Layers and dimensions": 0,
    }.items():
        assert card.count(words) == times, words


def test_the_card_of_a_token_table_tells_of_its_fit(tiny: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.warns(match="20 documents tell little"):
        fitted = fit_queries(tiny, COUNTED, queries=TEXTS)
    fitted.model_card_data.set_model_id("you/whole")
    for cut in (truncate(fitted, num_layers=0), truncate(fitted, num_layers=0, vocabulary=TEXTS)):
        card = card_of(cut, tmp_path)
        for words in (
            f"a row for each of {cut[0].num_embeddings} tokens",
            "documents that [you/whole](https://huggingface.co/you/whole) embedded",
            f"fitted to 20 documents and {len({*TEXTS})} queries",
            f"| 0 | {Declaration.of(fitted.config).agreement[Size(0, 8)]:.3f} |",
            "vector space, where a query is near the documents that answer it.",
        ):
            assert words in card, words
        assert "semantic textual similarity" not in card


def test_the_picture_of_a_grid_has_the_name_of_the_card(
    grid: GridResult, tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(GridResult, "plot", lambda self, _: drawn.append(self.model))
    tiny.model_card_data.set_model_id("you/new")
    card_of(tiny, tmp_path, grid.named("org/old"))
    assert {*drawn} == {"you/new"}


def test_a_router_with_one_depth_has_the_section_on_sizes(tiny: SentenceTransformer, tmp_path: Path) -> None:
    model = align(routed(normalized(tiny), shared=False), TEXTS, steps=0)
    assert "## Layers and dimensions" in card_of(model, tmp_path)


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
        "@misc{zhuang2024starbucks": 1,  # added by sentence-transformers, like the loss's settings
        '"kl_weight": 1.0': 1,
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
    card = card_of(small, tmp_path / "cut")
    whole = "[you/whole](https://huggingface.co/you/whole)"
    for words in (
        f"cut from {whole}: layers 1, 4 of 4 and the first 16 of 32 dimensions.",
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
        cut = truncate(tiny, num_layers=2, dim=16)
    card = card_of(cut, tmp_path)
    assert "truncate_dim=8)`." in card
    assert "expect lower scores" not in card
    assert "Of the sizes that the whole model was aligned for, this cut has:" in card


def test_the_card_of_a_cut_below_all_that_was_trained(tiny: SentenceTransformer, tmp_path: Path) -> None:
    declare_training(tiny.config, [Size(2, 8), Size(4, 32)], "MultiSizeLoss(CoSENTLoss)")
    with pytest.warns(UserWarning, match="not trained at 1L-4d"):
        cut = truncate(tiny, num_layers=1, dim=4)
    card = card_of(cut, tmp_path)
    assert "cut from a larger model: the first of 4 layers and the first 4 of 32 dimensions." in card
    assert "trained with `MultiSizeLoss(CoSENTLoss)`, at no size within this cut." in card
    assert "load(" not in card


def test_the_cards_of_an_aligned_model_and_its_cut_have_what_sizes_keep(tiny: SentenceTransformer, tmp_path: Path) -> None:
    measured = {Size(2, 8): 0.7, Size(2, 16): 0.8125, Size(4, 8): 0.9, Size(4, 32): 1.0}
    declare_training(tiny.config, measured, "align")
    declare(tiny.config, agreement=measured)
    tables = {
        "whole": "| layers / dim | 8 | 16 | 32 |\n| ---: | ---: | ---: | ---: |\n"
        "| 2 | 0.700 | 0.812 |  |\n| 4 | 0.900 |  | 1.000 |",
        "cut": "| layers / dim | 8 | 16 |\n| ---: | ---: | ---: |\n| 2 | 0.700 | 0.812 |",
    }
    for (name, shown), model in zip(tables.items(), (tiny, truncate(tiny, num_layers=2, dim=16)), strict=True):
        assert f"by the size and by the whole model.\n\n{shown}\n\n" in card_of(model, tmp_path / name)
    tiny.config.matryoshka_agreement = "much"
    assert "How well each size agrees" not in card_of(tiny, tmp_path / "foreign")


def test_refuses_folders_without_sizes(tiny: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="save the model there first"):
        add_to_model_card(tmp_path)
    tiny.save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="nothing to add"):
        add_to_model_card(tmp_path)


def scored() -> Dataset:
    return Dataset.from_dict({"a": families.TEXTS, "b": families.TEXTS[::-1], "score": [0.1, 0.2, 0.3, 0.4, 0.5]})
