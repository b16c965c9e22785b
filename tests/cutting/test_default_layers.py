"""Which layers a depth keeps if nobody says: by depth, by what the model declares, and the same by every way to a size."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import BertConfig, BertForMaskedLM

from st_matryoshka2d import Size, align, evaluate, fit_queries, load, sts_task, truncate
from st_matryoshka2d.evaluation.evaluator import GridEvaluator
from st_matryoshka2d.losses import MultiSizeLoss, StarbucksLoss
from st_matryoshka2d.model.identity import model_revision
from st_matryoshka2d.model.layers import Layers
from st_matryoshka2d.pretraining import SMAEForPreTraining
from tests.support.declared import declare_layers, declare_training
from tests.support.families import ENDS
from tests.support.pipelines import TEXTS, routed

pytestmark = pytest.mark.filterwarnings("ignore:(Nothing says that this model|This model was not aligned)")

FIRST = {depth: list(range(depth)) for depth in (1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (2, {1: [1]}),
        (3, {1: [1], 2: [1, 3]}),
        (4, {1: [1], 2: [1, 4], 3: [1, 3, 4]}),
        (6, {1: [1], 2: [1, 6], 3: [1, 5, 6], 4: [1, 2, 5, 6], 5: [1, 2, 4, 5, 6]}),
        (12, {1: [1], 2: [1, 12], 3: [1, 11, 12], 6: [1, 2, 3, 10, 11, 12], 9: [1, 2, 3, 4, 8, 9, 10, 11, 12]}),
    ],
)
def test_half_from_the_start_and_half_from_the_end(total: int, expected: dict[int, list[int]]) -> None:
    default = Layers.of(BertConfig(num_hidden_layers=total))
    assert {depth: [layer + 1 for layer in default.kept(depth)] for depth in expected} == expected
    assert default.kept(total) == list(range(total))
    kept = [set(default.kept(depth)) for depth in range(1, total + 1)]
    assert all(few < many for few, many in pairwise(kept)), "each depth has those of the one below"


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (2, {1: [2]}),
        (6, {1: [6], 2: [3, 6], 3: [2, 4, 6], 4: [1, 3, 4, 6], 5: [1, 2, 3, 4, 6]}),
        (12, {2: [6, 12], 4: [3, 6, 9, 12], 6: [2, 4, 6, 8, 10, 12], 12: list(range(1, 13))}),
    ],
)
def test_spread_evenly_with_the_last(total: int, expected: dict[int, list[int]]) -> None:
    chosen = Layers(total).chosen("spread")
    assert {depth: [layer + 1 for layer in chosen.kept(depth)] for depth in expected} == expected
    assert chosen.named == "spread"


def test_a_spread_cut_is_that_of_its_layers(tiny: SentenceTransformer) -> None:
    spread, listed = truncate(tiny, num_layers=2, layers="spread"), truncate(tiny, layers=[2, 4])
    assert (spread.encode(TEXTS) == listed.encode(TEXTS)).all()
    with pytest.raises(ValueError, match="must be 'first', 'ends', 'spread' or a list"):
        truncate(tiny, num_layers=2, layers="last")


def table(model: SentenceTransformer) -> SentenceTransformer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_queries(model, TEXTS)


def declared(model: SentenceTransformer, *sizes: Size) -> SentenceTransformer:
    declare_training(model.config, sizes, "a loss")
    return model


def aligned_before(model: SentenceTransformer) -> SentenceTransformer:
    """A model whose depths keep the layers that were the default of `align` once."""
    aligned = align(model, TEXTS, layers="ends", steps=0)
    declare_layers(aligned.config, {1: [1], 2: [1, 4], 3: [1, 2, 4]})
    return aligned


def built_loss(model: SentenceTransformer, *sizes: str) -> SentenceTransformer:
    MultiSizeLoss(model, MultipleNegativesRankingLoss(model), sizes)
    return model


def stepped(model: SentenceTransformer, *sizes: str, layers: str | None = None) -> SentenceTransformer:
    """A model after a backward pass, with the weights that it had."""
    loss = MultiSizeLoss(model, MultipleNegativesRankingLoss(model), sizes, layers=layers)
    model.train()
    loss([model.preprocess(TEXTS[:2], task="document") for _ in range(2)]).backward()
    model.zero_grad()
    return model.eval()


Make = Callable[[SentenceTransformer], SentenceTransformer]
DECLARED: dict[str, tuple[Make, dict[int, list[int]]]] = {
    "nothing": (lambda model: model, ENDS),
    "dims alone": (lambda model: declared(model, Size(4, 8), Size(4, 32)), ENDS),
    "a token table": (table, ENDS),
    "trained for fewer layers": (lambda model: declared(model, Size(2, 8), Size(4, 32)), FIRST),
    "a loss for fewer layers, before its first step": (lambda model: built_loss(model, "2L-8d", "4L-32d"), ENDS),
    "a loss for fewer layers": (lambda model: stepped(model, "2L-8d", "4L-32d"), ENDS),
    "a loss for the first layers": (lambda model: stepped(model, "2L-8d", "4L-32d", layers="first"), FIRST),
    "a loss for dims alone": (lambda model: stepped(model, "4L-8d", "4L-32d", layers="first"), ENDS),
    "chosen as the first": (lambda model: truncate(model, num_layers=4, layers="first"), FIRST),
    "aligned with the first": (lambda model: align(model, TEXTS, layers="first", steps=0), FIRST),
    "aligned": (lambda model: align(model, TEXTS, steps=0), ENDS),
    "aligned long ago": (aligned_before, {**ENDS, 3: [0, 1, 3]}),
}


@pytest.mark.filterwarnings("ignore:.*token table")
@pytest.mark.parametrize("what", DECLARED)
def test_what_a_model_declares_decides(what: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    make, expected = DECLARED[what]
    model = make(tiny)
    model.save_pretrained(str(tmp_path))
    for way in (model, load(tmp_path, device="cpu")):
        assert {depth: Layers.of(way.config).kept(depth) for depth in (1, 2, 3, 4)} == expected
    cut = truncate(model, num_layers=3)
    assert cut.config.matryoshka_cut.get("layers", [1, 2, 3]) == [layer + 1 for layer in expected[3]]


def scored(model: SentenceTransformer, **choice: Any) -> float:
    rows = {"sentence1": TEXTS[:20], "sentence2": TEXTS[20:], "score": [n % 5 / 4 for n in range(20)]}
    return evaluate(model, sts_task(rows, name="made"), sizes=["3L-32d"], show_progress_bar=False, **choice).score("3L-32d")


@pytest.mark.filterwarnings("ignore:.* does not train the full size")
def test_scores_are_of_these_layers_and_in_training_of_those_that_are_trained(tiny: SentenceTransformer) -> None:
    cut = {kind: scored(truncate(tiny, num_layers=3, layers=kind)) for kind in ("first", "ends")}
    assert cut["first"] != pytest.approx(cut["ends"], abs=1e-3)
    assert scored(tiny) == pytest.approx(cut["ends"], abs=1e-6)
    assert scored(tiny, layers="first") == pytest.approx(cut["first"], abs=1e-6)
    rows = {"sentence1": TEXTS[:20], "sentence2": TEXTS[20:], "score": [n % 5 / 4 for n in range(20)]}
    evaluator = GridEvaluator(sts_task(rows, name="made"), ["3L-32d"], write_csv=False)
    assert evaluator(tiny)["made_03L_0032d"] == pytest.approx(cut["ends"], abs=1e-6)
    StarbucksLoss(tiny, MultipleNegativesRankingLoss(tiny), layers="first")
    assert evaluator(tiny)["made_03L_0032d"] == pytest.approx(cut["ends"], abs=1e-6), "nothing was trained"
    stepped(tiny, "3L-8d", "4L-32d", layers="first")
    assert evaluator(tiny)["made_03L_0032d"] == pytest.approx(cut["first"], abs=1e-6)
    assert scored(tiny, layers="ends") == pytest.approx(cut["ends"], abs=1e-6)


def test_a_cut_of_a_cut_keeps_the_ends_of_what_is_left(tiny: SentenceTransformer) -> None:
    again = truncate(truncate(tiny, num_layers=3), num_layers=2)
    assert again.config.matryoshka_cut["layers"] == [1, 4]
    again = truncate(truncate(tiny, num_layers=3, layers="first"), num_layers=2)
    assert "layers" not in again.config.matryoshka_cut, "who cut to the first once meant it"


def test_each_route_of_a_router_is_declared(tiny: SentenceTransformer) -> None:
    model = routed(tiny, shared=False)
    stepped(model, "2L-8d", "4L-32d", layers="first")
    declared = [transformer[0].model.config.matryoshka_layers for transformer in model[0].sub_modules.values()]
    assert declared == [{}, {}]


def test_pre_training_is_for_the_first_layers(tiny: SentenceTransformer, tmp_path: Path) -> None:
    mlm = BertForMaskedLM(BertConfig(**{**tiny.config.to_dict(), "architectures": None}))
    SMAEForPreTraining(mlm, sizes=["2L-8d", "4L-32d"]).save_pretrained(tmp_path)
    assert Layers.of(BertConfig.from_pretrained(tmp_path)).kept(3) == [0, 1, 2]


def test_models_whose_depths_keep_other_layers_have_other_revisions(tiny: SentenceTransformer) -> None:
    before = model_revision(tiny)
    listed = copy.deepcopy(tiny)
    declare_layers(listed.config, {depth: [layer + 1 for layer in ENDS[depth]] for depth in (1, 2, 3)})
    assert model_revision(listed) == before, "the same layers, written out"
    assert model_revision(stepped(tiny, "2L-8d", "4L-32d", layers="first")) != before
