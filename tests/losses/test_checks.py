"""Errors of losses and terms, at construction or at the first invalid batch: they state the value and what is expected."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as st
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from torch import Tensor, nn

from st_matryoshka2d import Size, truncate
from st_matryoshka2d.losses import (
    PIC,
    SIA,
    EspressoLoss,
    FixedSizes,
    KLAlignment,
    MIPICLoss,
    MultiSizeLoss,
    PCACompression,
    RelationalDistill,
    RelationalDistillLoss,
    StarbucksLoss,
    Step,
    Term,
    TwoDMSELoss,
    UniformSizes,
)
from tests.support import families
from tests.support.losses import batch

pytestmark = pytest.mark.filterwarnings("ignore:.* does not train the full size")

NAN, INF = float("nan"), float("inf")
ALL_RECIPES = [StarbucksLoss, TwoDMSELoss, EspressoLoss, MIPICLoss]

Settings = dict[str, Any]


def cosent(model: SentenceTransformer) -> st.CoSENTLoss:
    return st.CoSENTLoss(model)


def mnrl(model: SentenceTransformer) -> st.MultipleNegativesRankingLoss:
    return st.MultipleNegativesRankingLoss(model)


class OneColumn(nn.Module):
    """A loss with an invalid return value."""

    def forward(self) -> None: ...


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (st.CachedMultipleNegativesRankingLoss, "CachedMultipleNegativesRankingLoss embeds texts by itself"),
        (lambda m: st.GISTEmbedLoss(m, m), "GISTEmbedLoss cannot be wrapped"),
        (lambda m: st.MatryoshkaLoss(m, st.CoSENTLoss(m), [8, 32]), "MatryoshkaLoss cannot be wrapped"),
        (lambda m: StarbucksLoss(m, st.CoSENTLoss(m)), "StarbucksLoss cannot be wrapped"),
        (lambda m: OneColumn(), "OneColumn cannot be wrapped"),
        (lambda m: "cosine", "loss must be a sentence-transformers loss.* got 'cosine'"),
        (lambda m: None, "got None"),
    ],
)
def test_invalid_wrapped_losses_are_refused(tiny: SentenceTransformer, make: Any, words: str) -> None:
    for recipe in ALL_RECIPES:
        with pytest.raises(TypeError, match=words):
            recipe(tiny, make(tiny))


@pytest.mark.parametrize("recipe", ALL_RECIPES)
def test_models_that_cannot_be_trained_are_refused(tiny: SentenceTransformer, recipe: Any, tmp_path: Path) -> None:
    static = SentenceTransformer(modules=[StaticEmbedding(families.tokenizer(), embedding_dim=32)], device="cpu")
    late = SentenceTransformer(modules=[Pooling(32)], device="cpu")
    two_groups = families.pipeline(families.REFUSED["albert with two groups"](), tmp_path, "mean", None, normalize=False)
    for model, loss, error, words in (
        (tiny, cosent(copy.deepcopy(tiny)), ValueError, "CoSENTLoss was built on a different model"),
        (tiny, st.EmbedDistillLoss(tiny, projection_dim=8), ValueError, "projection"),
        (static, cosent(static), ValueError, "starts with StaticEmbedding"),
        (late, cosent(late), ValueError, "starts with Pooling"),
        (tiny[0].model, cosent(tiny), TypeError, "Expected a SentenceTransformer, got BertModel"),
        (two_groups, cosent(two_groups), ValueError, "AlbertModel cannot be cut"),
    ):
        with pytest.raises(error, match=words):
            recipe(model, loss)
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got BertModel"):
        RelationalDistillLoss(tiny[0].model)


REFUSED: list[tuple[Any, Settings, type[Exception], str]] = [
    (StarbucksLoss, {"sizes": [Size(5, 8)]}, ValueError, "5 layers, but the model has 4"),
    (StarbucksLoss, {"sizes": [Size(4, 64)]}, ValueError, "64 dimensions, but the model has 32"),
    (StarbucksLoss, {"sizes": []}, ValueError, "empty"),
    (StarbucksLoss, {"sizes": [Size(1, 8), Size(1, 8)]}, ValueError, "more than once"),
    (StarbucksLoss, {"sizes": [(1, 8)]}, TypeError, "each of sizes must be a Size"),
    (StarbucksLoss, {"size_weights": [1.0]}, ValueError, "size_weights needs 4 values, one for each, got 1"),
    (StarbucksLoss, {"size_weights": [1, 1, 1, NAN]}, ValueError, "finite"),
    (StarbucksLoss, {"size_weights": [1, 1, 1, -1]}, ValueError, "not negative"),
    (StarbucksLoss, {"size_weights": [0, 0, 0, 0]}, ValueError, "all zero"),
    (StarbucksLoss, {"kl_weight": -1.0}, ValueError, "zero or more"),
    (StarbucksLoss, {"kl_temperature": 0.0}, ValueError, "above zero"),
    (StarbucksLoss, {"kl_over": "tokens"}, ValueError, "over must be one of"),
    (StarbucksLoss, {"mini_batch_size": 0}, ValueError, "mini_batch_size must be 1 or more, got 0"),
    (StarbucksLoss, {"mini_batch_size": True}, TypeError, "mini_batch_size"),
    (TwoDMSELoss, {"dims": [32]}, ValueError, "not below the full 32"),
    (TwoDMSELoss, {"dims": np.array([8, 33])}, ValueError, "dim=33: the model has 32"),
    (TwoDMSELoss, {"dims": "8"}, TypeError, "integer"),
    (TwoDMSELoss, {"dims": []}, ValueError, "Pass dims"),
    (TwoDMSELoss, {"dims": [8, 8]}, ValueError, "more than once"),
    (TwoDMSELoss, {"dims": [0]}, ValueError, "1 or more"),
    (TwoDMSELoss, {"weights": (1, 1, 1, 1)}, ValueError, "weights needs 5 values"),
    (TwoDMSELoss, {"weights": (0, 0, 0, 0, 1)}, ValueError, "all zero"),
    (EspressoLoss, {"compress_dim": 32}, ValueError, "compress_dim=32 is not below the full 32"),
    (EspressoLoss, {"compress_dim": 33}, ValueError, "compress_dim=33: the model has 32 dimensions"),
    (EspressoLoss, {"compress_dim": 0}, ValueError, "compress_dim must be 1 or more, got 0"),
    (EspressoLoss, {"compress_dim": 8.0}, TypeError, r"compress_dim must be an integer of 1 or more, got 8.0 \(float\)"),
    (EspressoLoss, {"compress_weight": NAN}, ValueError, "compress_weight must be zero or more and finite, got nan"),
    (MIPICLoss, {"alpha": 0}, ValueError, "alpha must be above zero and finite, got 0"),
    (MIPICLoss, {"alpha": 1.5}, ValueError, "alpha must be at most 1, .* got 1.5"),
    (MIPICLoss, {"dims": [8, 4, 32]}, ValueError, r"dims must ascend and end with the full dim 32.* got \[8, 4, 32\]"),
    (MIPICLoss, {"dims": [8, 16]}, ValueError, r"end with the full dim 32.* got \[8, 16\]"),
    (MIPICLoss, {"dims": [32]}, ValueError, r"at least one below it, got \[32\]"),
    (MIPICLoss, {"dims": [8, 64]}, ValueError, "dim=64: the model has 32 dimensions"),
    (MIPICLoss, {"gammas": [0.2]}, ValueError, "gammas needs 3 values, one for each dim below 32, got 1"),
    (MIPICLoss, {"gammas": [0.2, 0.5, 1.2]}, ValueError, r"up to 1 and not descending, got \[0.2, 0.5, 1.2\]"),
    (MIPICLoss, {"gammas": [0.7, 0.5, 0.2]}, ValueError, r"up to 1 and not descending, got \[0.7, 0.5, 0.2\]"),
    (MIPICLoss, {"gammas": [NAN, 0.2, 0.5]}, ValueError, "each of gammas must be above zero and finite, got nan"),
    (MIPICLoss, {"gammas": 0.5}, TypeError, "gammas must be a list of shares of the tokens, one for each dim below 32"),
    (MIPICLoss, {"gammas": "abc"}, TypeError, "gammas must be a list of shares of the tokens.* got 'abc'"),
    (
        MIPICLoss,
        {"checkpoints": [Size(1, 8), Size(1, 16)]},
        ValueError,
        r"deeper than the one before.* \['1L-8d', '1L-16d'\]",
    ),
    (MIPICLoss, {"checkpoints": [Size(1, 16), Size(2, 8)]}, ValueError, r"not narrower, got \['1L-16d', '2L-8d'\]"),
    (MIPICLoss, {"checkpoints": [Size(1, 8)]}, ValueError, r"at least two sizes.* got \['1L-8d'\]"),
    (MIPICLoss, {"checkpoints": [Size(1, 8), Size(5, 16)]}, ValueError, "checkpoints: 5L-16d has 5 layers"),
    (MIPICLoss, {"checkpoints": [(1, 8), (2, 16)]}, TypeError, r"each of checkpoints must be a Size .*got \(1, 8\)"),
    (MIPICLoss, {"layers": [5]}, ValueError, "num_layers=5: the model has 4 layers"),
    (MIPICLoss, {"layers": []}, ValueError, "at least one number from 1 to 4 is needed"),
    (MIPICLoss, {"layers": [1, 1]}, ValueError, "1 is given more than once"),
    (MIPICLoss, {"layers": [1.5]}, TypeError, "num_layers must be an integer of 1 or more, got 1.5"),
    (MIPICLoss, MIPICLoss.preset("bert-base"), ValueError, "dim=64: the model has 32 dimensions"),
    (
        RelationalDistillLoss,
        {"teacher": True},
        TypeError,
        "teacher must be a SentenceTransformer, 'labels' or None, got True",
    ),
    (RelationalDistillLoss, {"teacher": "bert"}, TypeError, "'labels' or None, got 'bert'"),
    (RelationalDistillLoss, {"mini_batch_size": 2.0}, TypeError, "mini_batch_size must be an integer of 1 or more, got 2.0"),
    (RelationalDistillLoss, {"sizes": 3}, TypeError, "sizes must be a list of sizes"),
    (RelationalDistillLoss, {"sizes": [Size(9, 8)]}, ValueError, "has 9 layers"),
    (RelationalDistillLoss, {"loss": cosent, "teacher": "labels"}, ValueError, "no labels for `loss`"),
    (RelationalDistillLoss, {"loss": cosent, "sizes": [Size(4, 16)]}, ValueError, "4L-32d, which is not among the sizes"),
    (RelationalDistillLoss, {"loss": cosent, "gather_across_devices": True}, ValueError, "to the wrapped loss"),
    (MultiSizeLoss, {"sizes": FixedSizes([Size(9, 8)], Size(12, 32))}, ValueError, "has 9 layers"),
    (
        MultiSizeLoss,
        {"sizes": UniformSizes(Size(4, 32), [8]), "size_weights": [1.0]},
        ValueError,
        "a sampler has its own weights",
    ),
    (MultiSizeLoss, {"sizes": ["1L-8d"], "terms": KLAlignment()}, TypeError, r"list of Term objects.*got KLAlignment\(\)"),
    (MultiSizeLoss, {"sizes": ["1L-8d"], "terms": [nn.Identity()]}, TypeError, "list of Term objects.*got Identity"),
    (MultiSizeLoss, {"sizes": ["1L-8d"], "terms": SIA}, TypeError, "list of Term objects.*got the class SIA"),
    (MultiSizeLoss, {"sizes": ["1L-8d"], "terms": None}, TypeError, "list of Term objects.*got None"),
    (MultiSizeLoss, {"sizes": ["1L-8d"], "terms": [PIC]}, TypeError, r"got the class PIC; call it: PIC\(\)"),
]


@pytest.mark.parametrize(("recipe", "settings", "error", "words"), REFUSED)
def test_settings_are_refused(
    tiny: SentenceTransformer, recipe: Any, settings: Settings, error: type[Exception], words: str
) -> None:
    given = {name: value(tiny) if value is cosent else value for name, value in settings.items()}
    wrapped = {} if recipe is RelationalDistillLoss else {"loss": mnrl(tiny)}
    with pytest.raises(error, match=words):
        recipe(tiny, **(wrapped | given))


@pytest.mark.parametrize(
    ("recipe", "size", "words"),
    [
        (TwoDMSELoss, {"num_layers": 1}, "only 1"),
        (TwoDMSELoss, {"dim": 8}, "below the full 8"),
        (EspressoLoss, {"num_layers": 1}, "layers and dims below the full ones; the model is 1L-32d"),
        (EspressoLoss, {"dim": 1}, "layers and dims below the full ones; the model is 4L-1d"),
        (MIPICLoss, {"num_layers": 1}, r"at least two sizes.* got \['1L-32d'\]"),
    ],
)
def test_a_cut_with_nothing_below_it_is_refused(
    tiny: SentenceTransformer, recipe: Any, size: dict[str, int], words: str
) -> None:
    cut = truncate(tiny, **size)
    settings = {"dims": [8, 32]} if recipe is MIPICLoss else {}
    with pytest.raises(ValueError, match=words):
        recipe(cut, mnrl(cut), **settings)
    if settings:
        assert not MIPICLoss(cut, mnrl(cut), dims=[8, 32], pic=False).phi


def test_a_similarity_without_a_matrix_aligns_only_coordinates(tiny: SentenceTransformer) -> None:
    odd = st.CoSENTLoss(tiny, similarity_fct=lambda a, b: (a - b).abs().sum(-1))
    with pytest.raises(ValueError, match="kl_over='embedding'"):
        StarbucksLoss(tiny, odd)
    StarbucksLoss(tiny, odd, kl_over="embedding")
    MultiSizeLoss(tiny, odd, [Size(1, 8)])
    with pytest.raises(ValueError, match="teacher must be one of"):
        KLAlignment(teacher="best")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bert", None])
def test_unknown_presets_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=f"presets for tinybert-6l, bert-base, bge-m3, qwen3-0.6b, not for {name!r}"):
        MIPICLoss.preset(name)


@pytest.mark.parametrize("full", ["4L-32", 4, None])
def test_samplers_refuse_an_invalid_full_size(full: Any) -> None:
    for sampler in (lambda: FixedSizes(["2L-8d"], full), lambda: UniformSizes(full, [8])):
        with pytest.raises((TypeError, ValueError), match="6L-128d"):
            sampler()


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
def test_weights_and_temperatures_are_numbers(term: Any, name: str, zero: bool) -> None:
    for value in (-1.0, NAN, INF, *([] if zero else [0])):
        with pytest.raises(ValueError, match=f"{name} must be {'zero or more' if zero else 'above zero'} and finite, got"):
            term(**{name: value})
    for value in (True, "1", torch.tensor(1.0), *([] if name == "across" else [None])):  # across=None: the default
        with pytest.raises(TypeError, match=f"{name} must be a number, got"):
            term(**{name: value})
    assert not zero or isinstance(term(**{name: 0}), Term)


class Returns(Term):
    """A user's term that returns a given value, or the result of a function of the step."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value

    def forward(self, step: Step) -> dict[str, Tensor]:
        return self.value(step) if callable(self.value) else self.value

    def get_config_dict(self) -> dict[str, object]:
        return {}


class Unannounced(Returns):
    def observe(self, tokens: Any) -> Tensor:
        return torch.zeros(1, 1)


class WithoutObserve(Returns):
    observes = 1


class TooMany(WithoutObserve):
    def layers_observed(self) -> set[int]:
        return {2}

    def observe(self, tokens: Any) -> Tensor:
        return tokens[2].pooled[:, :3]


class TooDeep(TooMany):
    def layers_observed(self) -> set[int]:
        return {9}


class AsksForDeeperSizes(Returns):
    def sizes_needed(self, trained: Any, full: Size) -> set[Size]:
        return {Size(7, 8)}


def with_term(model: SentenceTransformer, term: Term, mini_batch_size: int | None = None) -> MultiSizeLoss:
    return MultiSizeLoss(model, mnrl(model), [Size(2, 8)], [term], mini_batch_size=mini_batch_size)


@pytest.mark.parametrize(
    ("term", "error", "words"),
    [
        (Unannounced, TypeError, "Unannounced has an `observe` method, but observes=0"),
        (WithoutObserve, TypeError, "WithoutObserve has no `observe` method, but observes=1"),
        (TooDeep, ValueError, r"terms need layers \[2, 9\], but the model has layers 1 to 4"),
        (AsksForDeeperSizes, ValueError, r"terms need layers \[2, 7\], but the model has layers 1 to 4"),
        (lambda: PIC([Size(1, 8)]), ValueError, r"at least two sizes.* got \['1L-8d'\]"),
    ],
)
def test_terms_of_users_are_checked(
    tiny: SentenceTransformer, term: Callable[[], Term], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        with_term(tiny, term())


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (
            torch.tensor(1.0),
            TypeError,
            r"Returns.forward must return a dict of names and scalar tensors, got <class 'torch.T",
        ),
        ({"a": 0.5}, TypeError, r"scalar tensors, got \{'a': 0.5\}"),
        ({"a": torch.zeros(3)}, TypeError, r"scalar tensors, got \{'a': torch.Size\(\[3\]\)\}"),
        (
            lambda step: {"a": step.embeddings(Size(3, 8))[0].sum()},
            ValueError,
            r"3L-8d was not embedded in this step, only layers \[2\]. Add it to .*sizes_needed",
        ),
    ],
)
def test_what_a_term_returns_and_reads_is_checked(
    tiny: SentenceTransformer, value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        with_term(tiny, Returns(value))(batch(tiny, 2))


@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_a_term_adds_what_it_declares_and_no_more(tiny: SentenceTransformer, mini_batch_size: int | None) -> None:
    """Values that were not declared would shift the boundaries between layers."""
    named = Returns(lambda step: {"a": step.embeddings("2L-4d")[0].square().sum(), "b": torch.tensor(2.0)})
    parts = with_term(tiny, named, mini_batch_size)(batch(tiny, 2))
    assert (list(parts), parts["b"].item()) == (["task", "a", "b"], 2)
    texts = mini_batch_size or 5
    with pytest.raises(ValueError, match=rf"observe must return 1 numbers for each of {texts} texts, got \({texts}, 3\)"):
        with_term(tiny, TooMany(), mini_batch_size)(batch(tiny, 2))


@pytest.mark.parametrize("term", [SIA, PIC])
def test_a_term_with_parameters_belongs_to_one_loss(tiny: SentenceTransformer, term: Any) -> None:
    """A second loss would replace the parameters in the optimizer of the first."""
    shared = term()
    loss = with_term(tiny, shared)
    before = list(loss.own.values())
    with pytest.raises(ValueError, match=f"This {term.__name__} already belongs to a loss"):
        with_term(tiny, shared)
    assert all(now is then for now, then in zip(loss.terms.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("make", "columns", "labels", "words"),
    [
        (st.MultipleNegativesRankingLoss, 1, None, "2 or more text columns, the dataset has 1"),
        (st.CoSENTLoss, 3, torch.rand(5), "reads 2 text columns, the dataset has 3"),
        (st.TripletLoss, 2, None, "reads 3 text columns, the dataset has 2"),
        (st.MarginMSELoss, 2, torch.rand(5), "3 or more text columns, the dataset has 2"),
        (st.BatchAllTripletLoss, 2, torch.rand(5), "reads 1 text columns, the dataset has 2"),
        (st.CoSENTLoss, 2, None, "needs labels"),
        (st.MSELoss, 1, None, "needs labels"),
        (st.EmbedDistillLoss, 2, torch.rand(5, 16), "as wide as the model"),
        (st.EmbedDistillLoss, 2, torch.rand(5, 3, 32), "for 3 columns, the dataset has 2"),
    ],
)
def test_batches_that_do_not_fit_the_loss_are_refused(
    tiny: SentenceTransformer, make: Any, columns: int, labels: Tensor | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        StarbucksLoss(tiny, make(tiny))(batch(tiny, columns), labels)


@pytest.mark.parametrize("labels", [None, torch.ones(5), torch.ones(5, 4, dtype=torch.long), torch.ones(5, 3, 8)])
def test_labels_that_are_not_embeddings_are_refused(tiny: SentenceTransformer, labels: Tensor | None) -> None:
    with pytest.raises(ValueError, match="eacher embeddings"):
        RelationalDistillLoss(tiny, "labels")(batch(tiny, 2), labels)


@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_embeddings_that_are_not_finite_are_refused(tiny: SentenceTransformer, mini_batch_size: int | None) -> None:
    with torch.no_grad():
        tiny[0].model.encoder.layer[1].output.dense.weight[0, 0] = NAN
    loss = StarbucksLoss(tiny, mnrl(tiny), mini_batch_size=mini_batch_size)
    with pytest.raises(ValueError, match="NaN or infinite embeddings for 5 of 5 texts of column 1"):
        loss(batch(tiny, 2))
    assert all(parameter.grad is None for parameter in tiny.parameters())
