"""Errors of recipes with terms, and of terms: messages state the value found and the expected value."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss
from torch import Tensor

from st_matryoshka2d import Size, truncate
from st_matryoshka2d.losses import (
    PIC,
    SIA,
    EspressoLoss,
    MIPICLoss,
    MultiSizeLoss,
    PCACompression,
    RelationalDistill,
    RelationalDistillLoss,
    Step,
    Term,
)
from tests.support import families
from tests.support.losses import batch

NAN, INF = float("nan"), float("inf")

Refused = tuple[dict[str, Any], type[Exception], str]


def mnrl(model: SentenceTransformer) -> MultipleNegativesRankingLoss:
    return MultipleNegativesRankingLoss(model)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"compress_dim": 32}, ValueError, "compress_dim=32 is not below the full 32"),
        ({"compress_dim": 33}, ValueError, "compress_dim=33: the model has 32 dimensions"),
        ({"compress_dim": 0}, ValueError, "compress_dim must be 1 or more, got 0"),
        ({"compress_dim": -1}, ValueError, "compress_dim must be 1 or more, got -1"),
        ({"compress_dim": True}, TypeError, r"compress_dim must be an integer of 1 or more, got True \(bool\)"),
        ({"compress_dim": 8.0}, TypeError, r"compress_dim must be an integer of 1 or more, got 8.0 \(float\)"),
        ({"compress_weight": -1}, ValueError, "compress_weight must be zero or more and finite, got -1"),
        ({"compress_weight": NAN}, ValueError, "compress_weight must be zero or more and finite, got nan"),
        ({"compress_weight": "1"}, TypeError, "compress_weight must be a number, got '1'"),
        ({"mini_batch_size": 0}, ValueError, "mini_batch_size must be 1 or more, got 0"),
    ],
)
def test_espresso(tiny: SentenceTransformer, settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        EspressoLoss(tiny, mnrl(tiny), **settings)


@pytest.mark.parametrize("settings", [{"num_layers": 1}, {"dim": 1}])
def test_espresso_needs_something_below_the_full_size(tiny: SentenceTransformer, settings: dict[str, int]) -> None:
    cut = truncate(tiny, **settings)
    with pytest.raises(ValueError, match=r"layers and dims below the full ones; the model is (1L-32d|4L-1d)"):
        EspressoLoss(cut, mnrl(cut))


MIPIC_SETTINGS: list[Refused] = [
    ({"alpha": 0}, ValueError, "alpha must be above zero and finite, got 0"),
    ({"alpha": 1.5}, ValueError, "alpha must be at most 1, .* got 1.5"),
    ({"alpha": NAN}, ValueError, "alpha must be above zero and finite, got nan"),
    ({"alpha": True}, TypeError, "alpha must be a number, got True"),
    ({"dims": [8, 4, 32]}, ValueError, r"dims must ascend and end with the full dim 32.* got \[8, 4, 32\]"),
    ({"dims": [8, 16]}, ValueError, r"end with the full dim 32.* got \[8, 16\]"),
    ({"dims": [32]}, ValueError, r"at least one below it, got \[32\]"),
    ({"dims": [8, 8, 32]}, ValueError, "8 is given more than once"),
    ({"dims": []}, ValueError, "at least one number from 1 to 32 is needed"),
    ({"dims": [8, 64]}, ValueError, "dim=64: the model has 32 dimensions"),
    ({"dims": "8"}, TypeError, "integer of 1 or more, got '8'"),
    ({"dims": [True, 32]}, TypeError, "integer of 1 or more, got True"),
    ({"gammas": [0.2]}, ValueError, "gammas needs 3 values, one for each dim below 32, got 1"),
    ({"gammas": [0.2, 0.5, 1.2]}, ValueError, r"up to 1 and not descending, got \[0.2, 0.5, 1.2\]"),
    ({"gammas": [0.7, 0.5, 0.2]}, ValueError, r"up to 1 and not descending, got \[0.7, 0.5, 0.2\]"),
    ({"gammas": [-0.1, 0.2, 0.5]}, ValueError, "each of gammas must be above zero and finite, got -0.1"),
    ({"gammas": [NAN, 0.2, 0.5]}, ValueError, "each of gammas must be above zero and finite, got nan"),
    ({"gammas": ["a", 0.2, 0.5]}, TypeError, "each of gammas must be a number, got 'a'"),
    ({"gammas": 0.5}, TypeError, "gammas must be a list of shares of the tokens, one for each dim below 32, got 0.5"),
    ({"gammas": "abc"}, TypeError, "gammas must be a list of shares of the tokens.* got 'abc'"),
    ({"checkpoints": [Size(1, 8), Size(1, 16)]}, ValueError, r"deeper than the one before.* \['1L-8d', '1L-16d'\]"),
    ({"checkpoints": [Size(2, 8), Size(1, 16)]}, ValueError, r"deeper than the one before.* \['2L-8d', '1L-16d'\]"),
    ({"checkpoints": [Size(1, 16), Size(2, 8)]}, ValueError, r"not narrower, got \['1L-16d', '2L-8d'\]"),
    ({"checkpoints": [Size(1, 8)]}, ValueError, r"at least two sizes.* got \['1L-8d'\]"),
    ({"checkpoints": []}, ValueError, "checkpoints is empty"),
    ({"checkpoints": [Size(1, 8), Size(5, 16)]}, ValueError, "checkpoints: 5L-16d has 5 layers, but the model has 4"),
    ({"checkpoints": [Size(1, 8), Size(2, 64)]}, ValueError, "has 64 dimensions, but the model has 32"),
    ({"checkpoints": [(1, 8), (2, 16)]}, TypeError, r"each of checkpoints must be a Size .*got \(1, 8\)"),
    ({"layers": [5]}, ValueError, "num_layers=5: the model has 4 layers"),
    ({"layers": [0]}, ValueError, "num_layers must be 1 or more, got 0"),
    ({"layers": []}, ValueError, "at least one number from 1 to 4 is needed"),
    ({"layers": [1, 1]}, ValueError, "1 is given more than once"),
    ({"layers": [1.5]}, TypeError, "num_layers must be an integer of 1 or more, got 1.5"),
    ({"temperature": 0}, ValueError, "temperature must be above zero and finite, got 0"),
    ({"attention_temperature": -1}, ValueError, "attention_temperature must be above zero and finite, got -1"),
    (MIPICLoss.preset("bert-base"), ValueError, "dim=64: the model has 32 dimensions"),
]


@pytest.mark.parametrize(("settings", "error", "words"), MIPIC_SETTINGS)
def test_mipic(tiny: SentenceTransformer, settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        MIPICLoss(tiny, mnrl(tiny), **settings)


@pytest.mark.parametrize("name", ["bert", "", None, 3])
def test_refuses_unknown_presets(name: Any) -> None:
    with pytest.raises(ValueError, match=f"presets for tinybert-6l, bert-base, bge-m3, qwen3-0.6b, not for {name!r}"):
        MIPICLoss.preset(name)


@pytest.mark.parametrize(
    ("pooling", "dense", "found"),
    [("mean", 32, r"\['Pooling', 'Dense', 'Normalize'\]"), (("cls", "mean"), None, r"\['Pooling', 'Normalize'\]")],
)
def test_sia_needs_an_embedding_of_pooled_token_states(pooling: Any, dense: int | None, found: str, tmp_path: Path) -> None:
    model = families.pipeline(families.CONFIGS["bert"](), tmp_path, pooling, dense)
    with pytest.raises(ValueError, match=f"must be the pooled token states; this pipeline makes it with {found}.*sia=False"):
        MIPICLoss(model, mnrl(model))
    with pytest.raises(ValueError, match="Leave SIA out"):
        MultiSizeLoss(model, mnrl(model), [Size(2, 8)], [SIA()])
    assert list(MIPICLoss(model, mnrl(model), sia=False)(batch(model, 2))) == ["mrl", "pic"]


def test_mipic_of_one_layer(tiny: SentenceTransformer) -> None:
    one = truncate(tiny, num_layers=1)
    with pytest.raises(ValueError, match=r"at least two sizes.* got \['1L-32d'\]"):
        MIPICLoss(one, mnrl(one), dims=[8, 32])
    assert not MIPICLoss(one, mnrl(one), dims=[8, 32], pic=False).phi


@pytest.mark.parametrize(
    ("term", "name", "zero"),
    [
        (SIA, "weight", True),
        (SIA, "attention_temperature", False),
        (PIC, "weight", True),
        (PIC, "temperature", False),
        (PCACompression, "weight", True),
        (RelationalDistill, "weight", False),
        (RelationalDistill, "temperature", False),
        (RelationalDistill, "across", True),
    ],
)
def test_weights_and_temperatures(term: Any, name: str, zero: bool) -> None:
    for value in (-1.0, NAN, INF, *([] if zero else [0])):
        with pytest.raises(ValueError, match=f"{name} must be {'zero or more' if zero else 'above zero'} and finite, got"):
            term(**{name: value})
    for value in (True, "1", torch.tensor(1.0), *([] if name == "across" else [None])):  # across=None: the default
        with pytest.raises(TypeError, match=f"{name} must be a number, got"):
            term(**{name: value})
    assert not zero or isinstance(term(**{name: 0}), Term)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"teacher": True}, TypeError, "teacher must be a SentenceTransformer, 'labels' or None, got True"),
        ({"teacher": "bert"}, TypeError, "teacher must be a SentenceTransformer, 'labels' or None, got 'bert'"),
        ({"mini_batch_size": True}, TypeError, "mini_batch_size must be an integer of 1 or more, got True"),
        ({"mini_batch_size": 2.0}, TypeError, "mini_batch_size must be an integer of 1 or more, got 2.0"),
        ({"sizes": []}, ValueError, "sizes is empty"),
        ({"sizes": 3}, TypeError, "sizes must be a list of sizes"),
        ({"temperature": NAN}, ValueError, "temperature must be above zero and finite, got nan"),
    ],
)
def test_distillation(tiny: SentenceTransformer, settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        RelationalDistillLoss(tiny, **settings)
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got BertModel"):
        RelationalDistillLoss(tiny[0].model)


@pytest.mark.parametrize("recipe", [EspressoLoss, MIPICLoss])
def test_models_and_losses(tiny: SentenceTransformer, recipe: Any) -> None:
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got BertModel"):
        recipe(tiny[0].model, mnrl(tiny))
    with pytest.raises(TypeError, match=r"loss must be a sentence-transformers loss.* got None"):
        recipe(tiny, None)
    with pytest.raises(ValueError, match="CoSENTLoss was built on a different model"):
        recipe(tiny, CoSENTLoss(copy.deepcopy(tiny)))


class Custom(Term):
    """A user-written term with a mistake."""

    def forward(self, step: Step) -> dict[str, Tensor]:
        return {"observed": step.observed[self][0].mean()}

    def get_config_dict(self) -> dict[str, object]:
        return {}


class WithoutObserve(Custom):
    observes = 1


class TooMany(Custom):
    observes = 1

    def layers_observed(self) -> set[int]:
        return {2}

    def observe(self, tokens: Any) -> Tensor:
        return tokens[2].pooled[:, :3]


class TooDeep(TooMany):
    def layers_observed(self) -> set[int]:
        return {9}


class AsksForDeeperSizes(Custom):
    def sizes_needed(self, trained: Any, full: Size) -> set[Size]:
        return {Size(7, 8)}


@pytest.mark.parametrize(
    ("term", "error", "words"),
    [
        (WithoutObserve, TypeError, "WithoutObserve has no `observe` method, but observes=1"),
        (TooDeep, ValueError, r"terms need layers \[2, 9\], but the model has layers 1 to 4"),
        (AsksForDeeperSizes, ValueError, r"terms need layers \[2, 7\], but the model has layers 1 to 4"),
        (lambda: SIA, TypeError, r"got the class SIA; call it: SIA\(\)"),
        (lambda: PIC([Size(1, 8)]), ValueError, r"at least two sizes.* got \['1L-8d'\]"),
    ],
)
def test_terms(tiny: SentenceTransformer, term: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        MultiSizeLoss(tiny, mnrl(tiny), [Size(2, 8)], [term()])


@pytest.mark.parametrize("mini_batch_size", [None, 2])
@pytest.mark.filterwarnings("ignore:.* does not train the full size")
def test_refuses_term_that_observes_more_than_it_declares(tiny: SentenceTransformer, mini_batch_size: int | None) -> None:
    """Extra values would shift the boundaries between layers."""
    loss = MultiSizeLoss(tiny, mnrl(tiny), [Size(2, 8)], [TooMany()], mini_batch_size=mini_batch_size)
    texts = mini_batch_size or 5
    with pytest.raises(
        ValueError, match=rf"TooMany.observe must return 1 numbers for each of {texts} texts, got \({texts}, 3\)"
    ):
        loss(batch(tiny, 2))
