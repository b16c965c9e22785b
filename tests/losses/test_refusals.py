"""What losses, terms and the callback refuse, at construction or at the first batch that does not fit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router
from sentence_transformers.sentence_transformer import losses as st
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding
from torch import Tensor, nn

from st_matryoshka2d import Size, truncate
from st_matryoshka2d.losses import (
    PIC,
    SIA,
    EspressoLoss,
    FixedSizes,
    KLAlignment,
    LossStateCallback,
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
from tests.support.losses import batch, total
from tests.support.training import RECIPES

pytestmark = pytest.mark.filterwarnings("ignore:.* does not train the full size", "ignore:.* trains .* tensors of its own")

Call = Callable[[SentenceTransformer], object]
NAN = float("nan")
mnrl, cosent = st.MultipleNegativesRankingLoss, st.CoSENTLoss
labels = torch.rand


def of(recipe: Any, **settings: Any) -> Call:
    """Build a recipe with a loss of pairs; distillation has none of its own."""
    if recipe is RelationalDistillLoss:
        return lambda model: recipe(model, **settings)
    return lambda model: recipe(model, mnrl(model), **settings)


def around(make: Any) -> Call:
    return lambda model: StarbucksLoss(model, make(model))


def terms(*given: Any, sizes: Any = ("2L-8d",)) -> Call:
    """Build a loss with terms, which belong to one loss."""
    return lambda model: MultiSizeLoss(model, mnrl(model), list(sizes), [make() for make in given])


def step(make: Any, columns: int, labels: Tensor | None = None) -> Call:
    return lambda model: StarbucksLoss(model, make(model))(batch(model, columns), labels)


class Returns(Term):
    """A user's term that returns a value, or the result of a function of the step."""

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


def returns(value: Any) -> Call:
    return lambda model: terms(lambda: Returns(value))(model)(batch(model, 2))


def distil(columns: int, labels: Tensor | None, **settings: Any) -> Call:
    return lambda model: RelationalDistillLoss(model, "labels", **settings)(batch(model, columns), labels)


def with_nan(model: SentenceTransformer, mini_batch_size: int | None = None) -> None:
    with torch.no_grad():
        model[0].model.encoder.layer[1].output.dense.weight[0, 0] = NAN
    StarbucksLoss(model, mnrl(model), mini_batch_size=mini_batch_size)(batch(model, 2))


def static(_: object = None) -> list[nn.Module]:
    return [StaticEmbedding(families.tokenizer(), embedding_dim=32)]


def cut_to(recipe: Any, size: dict[str, int], **settings: Any) -> Call:
    """Build a recipe for a cut that has nothing below it."""
    return lambda model: of(recipe, **settings)(truncate(model, **size))


def routed(recipe: Any, query: Callable[[Any], Any], document: Callable[[Any], Any]) -> Call:
    """Build a recipe for a router with these modules of the model."""

    def call(model: SentenceTransformer) -> None:
        router = Router.for_query_document(list(query(model)), list(document(model)))
        of(recipe)(SentenceTransformer(modules=[router], device="cpu"))

    return call


def with_normalize(model: SentenceTransformer) -> list[nn.Module]:
    return [*model, Normalize()]


REFUSED: list[tuple[Call, type[Exception], str]] = [
    # The wrapped loss.
    (around(st.CachedMultipleNegativesRankingLoss), TypeError, "CachedMultipleNegativesRankingLoss"),
    (around(lambda m: st.GISTEmbedLoss(m, m)), TypeError, "GISTEmbedLoss"),
    (around(lambda m: st.MatryoshkaLoss(m, cosent(m), [8, 32])), TypeError, "MatryoshkaLoss"),
    (around(lambda m: StarbucksLoss(m, cosent(m))), TypeError, "StarbucksLoss"),
    (around(lambda m: nn.Identity()), TypeError, "Identity"),
    (around(lambda m: None), TypeError, "None"),
    (around(lambda m: cosent(copy.deepcopy(m))), ValueError, "CoSENTLoss .* different model"),
    (around(lambda m: st.EmbedDistillLoss(m, projection_dim=8)), ValueError, "projection"),
    (around(lambda m: cosent(m, similarity_fct=lambda a, b: (a - b).abs().sum(-1))), ValueError, "kl_over"),
    # The model.
    (lambda m: StarbucksLoss(m[0].model, cosent(m)), TypeError, "BertModel"),
    (lambda m: RelationalDistillLoss(m[0].model), TypeError, "BertModel"),
    # Sizes, weights and numbers.
    (of(StarbucksLoss, sizes=[Size(5, 8)]), ValueError, "5 layers.* 4"),
    (of(StarbucksLoss, sizes=[Size(4, 64)]), ValueError, "64 dim.* 32"),
    (of(StarbucksLoss, sizes=[]), ValueError, "empty"),
    (of(StarbucksLoss, sizes=[Size(1, 8), Size(1, 8)]), ValueError, "more than once"),
    (of(StarbucksLoss, size_weights=[1.0]), ValueError, "size_weights .*4.* 1"),
    (of(StarbucksLoss, size_weights=[1, 1, 1, NAN]), ValueError, "finite"),
    (of(StarbucksLoss, size_weights=[1, 1, 1, -1]), ValueError, "negative"),
    (of(StarbucksLoss, size_weights=[0, 0, 0, 0]), ValueError, "zero"),
    (of(StarbucksLoss, kl_weight=-1.0), ValueError, "-1"),
    (of(StarbucksLoss, kl_temperature=0.0), ValueError, "above zero"),
    (of(StarbucksLoss, kl_over="tokens"), ValueError, "tokens"),
    (lambda m: KLAlignment(teacher="best"), ValueError, "best"),  # type: ignore[arg-type]
    (of(StarbucksLoss, mini_batch_size=0), ValueError, "mini_batch_size .*0"),
    (of(StarbucksLoss, mini_batch_size=True), TypeError, "mini_batch_size"),
    (of(StarbucksLoss, mini_batch_num_tokens=2.5), TypeError, "mini_batch_num_tokens"),
    (lambda m: RelationalDistill(mini_batch_num_tokens=0), ValueError, "mini_batch_num_tokens"),
    (of(TwoDMSELoss, dims=[32]), ValueError, "32"),
    (of(TwoDMSELoss, dims=[8, 33]), ValueError, "33.* 32"),
    (of(TwoDMSELoss, dims="8"), TypeError, "integer"),
    (of(TwoDMSELoss, dims=[]), ValueError, "dims"),
    (of(TwoDMSELoss, dims=[0]), ValueError, "1 or more"),
    (of(TwoDMSELoss, weights=(1, 1, 1, 1)), ValueError, "weights .*5"),
    (of(TwoDMSELoss, weights=(0, 0, 0, 0, 1)), ValueError, "zero"),
    (of(EspressoLoss, compress_dim=32), ValueError, "compress_dim=32"),
    (of(EspressoLoss, compress_dim=33), ValueError, "compress_dim=33.* 32"),
    (of(EspressoLoss, compress_dim=8.0), TypeError, "compress_dim .*8.0"),
    (of(MIPICLoss, alpha=0), ValueError, "alpha .*0"),
    (of(MIPICLoss, alpha=1.5), ValueError, "alpha .*1.5"),
    (of(MIPICLoss, dims=[8, 4, 32]), ValueError, r"\[8, 4, 32\]"),
    (of(MIPICLoss, dims=[8, 16]), ValueError, r"32.* \[8, 16\]"),
    (of(MIPICLoss, dims=[32]), ValueError, r"\[32\]"),
    (of(MIPICLoss, dims=[8, 64]), ValueError, "dim=64.* 32"),
    (of(MIPICLoss, gammas=[0.2]), ValueError, "gammas .*3.* 1"),
    (of(MIPICLoss, gammas=[0.2, 0.5, 1.2]), ValueError, "1.2"),
    (of(MIPICLoss, gammas=[0.7, 0.5, 0.2]), ValueError, "descending"),
    (of(MIPICLoss, gammas=0.5), TypeError, "float"),
    (of(MIPICLoss, gammas="abc"), TypeError, "gammas .*'a'"),
    (of(MIPICLoss, checkpoints=[Size(1, 8), Size(1, 16)]), ValueError, "1L-8d.*1L-16d"),
    (of(MIPICLoss, checkpoints=[Size(1, 16), Size(2, 8)]), ValueError, "1L-16d.*2L-8d"),
    (of(MIPICLoss, checkpoints=[Size(1, 8)]), ValueError, "two sizes"),
    (of(MIPICLoss, checkpoints=[(1, 8), (2, 16)]), TypeError, "checkpoints"),
    (of(MIPICLoss, layers=[5]), ValueError, "5.* 4"),
    (of(MIPICLoss, layers=[]), ValueError, "1 to 4"),
    (of(MIPICLoss, layers=[1.5]), TypeError, "1.5"),
    (lambda m: MIPICLoss.preset("bert"), ValueError, "bert-base.*'bert'"),  # type: ignore[arg-type]
    (of(MultiSizeLoss, sizes=FixedSizes([Size(9, 8)], Size(12, 32))), ValueError, "9 layers"),
    (of(MultiSizeLoss, sizes=UniformSizes(Size(4, 32), [8]), size_weights=[1.0]), ValueError, "sampler"),
    (lambda m: FixedSizes(["2L-8d"], "4L-32"), ValueError, "6L-128d"),
    (lambda m: UniformSizes(4, [8]), TypeError, "6L-128d"),  # type: ignore[arg-type]
    # Cuts with nothing below, and routes that differ in size, or in what terms with lengths read.
    (cut_to(TwoDMSELoss, {"num_layers": 1}), ValueError, "1"),
    (cut_to(TwoDMSELoss, {"dim": 8}), ValueError, "8"),
    (cut_to(EspressoLoss, {"num_layers": 1}), ValueError, "1L-32d"),
    (cut_to(EspressoLoss, {"dim": 1}), ValueError, "4L-1d"),
    (cut_to(MIPICLoss, {"num_layers": 1}, dims=[8, 32]), ValueError, "1L-32d"),
    (routed(StarbucksLoss, list, lambda m: truncate(m, num_layers=2)), ValueError, "4.* 2"),
    (routed(StarbucksLoss, list, lambda m: [*m, Dense(32, 16)]), ValueError, "32.* 16"),
    (routed(StarbucksLoss, static, list), ValueError, "query.*StaticEmbedding"),
    (routed(StarbucksLoss, list, static), ValueError, "document.*StaticEmbedding"),
    (routed(EspressoLoss, with_normalize, list), ValueError, "document.*Normalize"),
    (routed(MIPICLoss, list, with_normalize), ValueError, "query.*Normalize"),
    # Distillation.
    (of(RelationalDistillLoss, teacher=True), TypeError, "teacher .*True"),
    (of(RelationalDistillLoss, teacher="bert"), TypeError, "'bert'"),
    (lambda m: RelationalDistillLoss(m, "labels", loss=cosent(m)), ValueError, "labels"),
    (lambda m: RelationalDistillLoss(m, sizes=[Size(4, 16)], loss=cosent(m)), ValueError, "4L-32d"),
    (lambda m: RelationalDistillLoss(m, loss=cosent(m), gather_across_devices=True), ValueError, "wrapped loss"),
    (lambda m: RelationalDistillLoss(m, truncate(m, dim=4), across=1.0), ValueError, "4 .*32"),
    (distil(1, torch.rand(5, 4), across=1.0), ValueError, "4 .*32"),
    *((distil(2, given), ValueError, "eacher") for given in (None, torch.ones(5), torch.ones(5, 3, 8))),
    (distil(2, torch.ones(5, 4, dtype=torch.long)), ValueError, "eacher"),
    # Terms.
    (of(MultiSizeLoss, sizes=["1L-8d"], terms=KLAlignment()), TypeError, "KLAlignment"),
    (of(MultiSizeLoss, sizes=["1L-8d"], terms=[nn.Identity()]), TypeError, "Identity"),
    (of(MultiSizeLoss, sizes=["1L-8d"], terms=SIA), TypeError, "iterable"),
    (terms(Unannounced), TypeError, "Unannounced .*0"),
    (terms(WithoutObserve), TypeError, "WithoutObserve .*1"),
    (terms(TooDeep), ValueError, "9.* 4"),
    (terms(AsksForDeeperSizes), ValueError, "7.* 4"),
    (terms(lambda: PIC([Size(1, 8)])), ValueError, "1L-8d"),
    (lambda m: terms(TooMany)(m)(batch(m, 2)), ValueError, r"1 .*\(5, 3\)"),
    (returns(torch.tensor(1.0)), TypeError, "Returns"),
    (returns({"a": 0.5}), TypeError, "0.5"),
    (returns({"a": torch.zeros(3)}), TypeError, "Returns"),
    (returns(lambda step: {"a": step.embeddings(Size(3, 8))[0].sum()}), ValueError, "3L-8d"),
    # Batches.
    (step(mnrl, 1), ValueError, "2 .* 1"),
    (step(st.MarginMSELoss, 2, labels(5)), ValueError, "3 .* 2"),
    (step(st.BatchAllTripletLoss, 2, labels(5)), ValueError, "1 .* 2"),
    (step(cosent, 2), ValueError, "labels"),
    (step(st.MSELoss, 1), ValueError, "labels"),
    (step(st.EmbedDistillLoss, 2, labels(5, 16)), ValueError, "wide"),
    (step(st.EmbedDistillLoss, 2, labels(5, 3, 32)), ValueError, "3 .* 2"),
    (with_nan, ValueError, "5 of 5"),
    (lambda m: with_nan(m, 2), ValueError, "5 of 5"),
    # The callback.
    (lambda m: LossStateCallback(m), TypeError, "SentenceTransformer"),  # type: ignore[arg-type]
    (lambda m: LossStateCallback({"a": 1}), TypeError, "int"),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refused(tiny: SentenceTransformer, call: Call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(tiny)


def test_models_that_cannot_be_cut(tmp_path: Path) -> None:
    two_groups = families.REFUSED["albert with two groups"]()
    for modules, word in (
        (static(), "StaticEmbedding"),
        ([Pooling(32)], "Pooling"),
        (list(families.pipeline(two_groups, tmp_path, "mean", None, normalize=False)), "AlbertModel"),
    ):
        model = SentenceTransformer(modules=modules, device="cpu")
        for recipe in (StarbucksLoss, TwoDMSELoss, EspressoLoss, MIPICLoss):
            with pytest.raises(ValueError, match=word):
                recipe(model, cosent(model))


@pytest.mark.parametrize(("pooling", "dense"), [("mean", 32), (("cls", "mean"), None)])
def test_sia_needs_pooled_token_states(pooling: Any, dense: int | None, tmp_path: Path) -> None:
    model = families.pipeline(families.CONFIGS["bert"](), tmp_path, pooling, dense)
    for call in (of(MIPICLoss), terms(SIA)):
        with pytest.raises(ValueError, match=r"SIA|sia"):
            call(model)
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
    for value in (-1.0, NAN, float("inf"), *([] if zero else [0])):
        with pytest.raises(ValueError, match=name):
            term(**{name: value})
    for value in (True, "1", torch.tensor(1.0)):
        with pytest.raises(TypeError, match=name):
            term(**{name: value})
    assert not zero or isinstance(term(**{name: 0}), Term)


@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_a_term_adds_what_it_declares(tiny: SentenceTransformer, mini_batch_size: int | None) -> None:
    def values(step: Step) -> dict[str, Tensor]:
        return {"a": step.embeddings("2L-4d")[0].square().sum(), "b": torch.tensor(2.0)}

    loss = MultiSizeLoss(tiny, mnrl(tiny), ["2L-8d"], [Returns(values)], mini_batch_size=mini_batch_size)
    parts = loss(batch(tiny, 2))
    assert (list(parts), parts["b"].item()) == (["task", "a", "b"], 2)


@pytest.mark.parametrize("term", [SIA, PIC])
def test_a_term_with_parameters_belongs_to_one_loss(tiny: SentenceTransformer, term: Any) -> None:
    """A second loss would replace the parameters in the optimizer of the first."""
    shared = term()
    loss = terms(lambda: shared)(tiny)
    before = list(loss.own.values())  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=term.__name__):
        terms(lambda: shared)(tiny)
    assert all(now is then for now, then in zip(shared.parameters(), before, strict=True))


@pytest.mark.parametrize("recipe", RECIPES)
def test_not_inside_another_loss_that_chooses_sizes(tiny: SentenceTransformer, recipe: str) -> None:
    loss = RECIPES[recipe](tiny, mini_batch_size=2 if recipe == "MIPIC" else None)
    name = type(loss).__name__
    for make in (st.MatryoshkaLoss, st.Matryoshka2dLoss):
        with pytest.raises(TypeError, match=name):
            make(tiny, loss, [8, 32])
    with pytest.warns(UserWarning, match=name):
        around = st.AdaptiveLayerLoss(tiny, loss)
    before = tiny.config.to_dict()
    with pytest.raises(TypeError, match=name):
        around(batch(tiny, 2), None)
    assert tiny.config.to_dict() == before
    assert total(loss(batch(tiny, 2))).isfinite(), "the model is as it was"
