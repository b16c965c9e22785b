"""Losses compared with the papers' equations, written as loops, and with physically cut models: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss
from torch import Tensor, nn
from torch.nn import functional

from st_matryoshka2d import Size, align
from st_matryoshka2d.losses import FixedSizes, KLAlignment, MultiSizeLoss, StarbucksLoss, TwoDMSELoss
from tests.support import families, oracles
from tests.support.families import cut_by_hand
from tests.support.losses import (
    SumOfSquares,
    assert_gradients_close,
    batch,
    exact,
    gradients,
    physical_columns,
    seed_draws,
    total,
)
from tests.support.pipelines import TEXTS, elastic, normalized, readouts, turned

pytestmark = pytest.mark.filterwarnings("ignore:.* trains .* tensors of its own", "ignore:.* does not train the full size")

SIZES = [(1, 4), (2, 8), (3, 20), (4, 32)]


TOLERANCE = 1e-5


# The wrapped loss, its oracle, and the similarity of the divergence over scores.
WRAPPED: dict[str, tuple[Callable[[SentenceTransformer], nn.Module], Any, Any]] = {
    "cosine": (MultipleNegativesRankingLoss, oracles.mnrl, oracles.cosine),
    "dot": (
        lambda model: MultipleNegativesRankingLoss(model, scale=1.0, similarity_fct=util.dot_score),
        partial(oracles.mnrl, similarity=oracles.dot, scale=1.0),
        oracles.dot,
    ),
    "lengths": (lambda model: SumOfSquares(), lambda columns: columns[0].square().sum(), oracles.cosine),
}


@pytest.mark.parametrize(
    ("columns", "wrapped", "over", "weights"),
    [
        (3, "cosine", "scores", [1.0, 0.0, 2.5, 4.0]),
        (2, "dot", "scores", None),
        (2, "cosine", "embedding", None),
        (1, "lengths", "scores", None),  # one column is compared with itself
    ],
)
def test_starbucks_matches_equations_4_and_5(
    tiny: SentenceTransformer, columns: int, wrapped: str, over: Any, weights: list[float] | None
) -> None:
    model = exact(tiny)
    make, task_oracle, similarity = WRAPPED[wrapped]
    settings = {"kl_temperature": 0.7, "kl_over": over, "kl_weight": 0.5, "size_weights": weights}
    loss = StarbucksLoss(model, make(model), [Size(*size) for size in SIZES], **settings)
    parts = loss(batch(model, columns))
    if over == "scores":
        divergence = partial(oracles.kl_over_scores, temperature=0.7, similarity=similarity)
    else:
        divergence = partial(oracles.kl_over_coordinates, temperature=0.7)
    by_layer = physical_columns(model, columns)
    task, align = oracles.starbucks(by_layer, SIZES, task_oracle, divergence, weights, kl_weight=0.5)
    assert parts["task"].item() == pytest.approx(task.item(), abs=TOLERANCE)
    assert parts["kl"].item() == pytest.approx(align.item(), abs=TOLERANCE)
    assert align.item() > 1e-6, "a divergence of zero would prove nothing"
    assert_gradients_close(gradients(model, total(parts)), gradients(model, task + align))


def test_score_labels(tiny: SentenceTransformer) -> None:
    model = exact(tiny)
    labels = torch.tensor([0.9, 0.1, 0.5, 0.5, 0.3])
    parts = MultiSizeLoss(model, CoSENTLoss(model), [Size(*size) for size in SIZES])(batch(model, 2), labels)
    by_layer = physical_columns(model, 2)
    expected = sum(oracles.cosent(oracles.at(by_layer, n, d), labels) for n, d in SIZES) / len(SIZES)
    assert list(parts) == ["task"]
    assert parts["task"].item() == pytest.approx(expected.item(), abs=TOLERANCE)
    assert_gradients_close(gradients(model, parts["task"]), gradients(model, expected))


@pytest.mark.parametrize(
    ("weights", "over"), [((1, 1, 1, 1, 0), "scores"), ((0, 1, 1, 1, 1), "embedding"), ((0.5, 2, 0.1, 3, 0.7), "scores")]
)
def test_2dmse_matches_equations_2_to_7(tiny: SentenceTransformer, weights: tuple[float, ...], over: str) -> None:
    model = exact(tiny)
    loss = TwoDMSELoss(model, MultipleNegativesRankingLoss(model), weights=weights, kl_over=over)  # type: ignore[arg-type]
    seed_draws(loss, 5)
    parts = loss(batch(model, 3))
    torch.manual_seed(5)
    n, d = int(torch.randint(1, 4, ())), [8, 16][int(torch.randint(2, ()))]
    divergence = partial(oracles.kl_over_scores if over == "scores" else oracles.kl_over_coordinates, temperature=0.3)
    task, align = oracles.two_dmse(physical_columns(model, 3), n, d, oracles.mnrl, divergence, weights)
    assert parts["task"].item() == pytest.approx(task.item(), abs=TOLERANCE)
    assert parts["kl"].item() == pytest.approx(align.item(), abs=TOLERANCE)
    assert_gradients_close(gradients(model, total(parts)), gradients(model, task + align))


def test_a_large_batch_of_equal_texts_stays_finite(tiny: SentenceTransformer) -> None:
    model = exact(tiny)
    features = [model.preprocess(["the cat"] * 6), model.preprocess(["the cat"] * 6)]
    parts = StarbucksLoss(model, MultipleNegativesRankingLoss(model), kl_temperature=0.01)(features)
    assert oracles.is_finite(total(parts))
    assert all(bool(torch.isfinite(g).all()) for g in gradients(model, total(parts)).values())


def test_the_starbucks_authors_code_for_sentence_pairs_is_a_composition(tiny: SentenceTransformer) -> None:
    """Sizes are added up; the KL compares coordinates at temperature 1, and 0.3 is a factor."""
    model = exact(tiny)
    sizes = FixedSizes([Size(*size) for size in SIZES], Size(*SIZES[-1]), reduction="sum")
    loss = MultiSizeLoss(
        model, MultipleNegativesRankingLoss(model), sizes, terms=[KLAlignment(0.3, 1.0, "embedding", reduction="sum")]
    )
    parts = loss(batch(model, 2))
    by_layer = physical_columns(model, 2)
    expected = oracles.mnrl(by_layer[4])
    whole = torch.cat(by_layer[4])
    for layer, dim in SIZES[:-1]:
        expected = expected + oracles.mnrl([column[:, :dim] for column in by_layer[layer]])
        student, teacher = torch.cat(by_layer[layer])[:, :dim], whole[:, :dim]
        divergence = nn.functional.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")
        assert divergence.item() > 1e-6
        expected = expected + 0.3 * divergence
    assert total(parts).item() == pytest.approx(expected.item(), abs=TOLERANCE)


ENDS: dict[str, Callable[[SentenceTransformer], SentenceTransformer]] = {
    "as it is": lambda model: model,
    "elastic": lambda model: elastic(normalized(model)),
    "last layers": normalized,
}


THROUGH_READOUTS = [Size(1, 4), Size(3, 8), Size(3, 32)]


@pytest.fixture(params=ENDS)
def aligned(request: pytest.FixtureRequest, tiny: SentenceTransformer) -> SentenceTransformer:
    layers = "ends" if request.param == "last layers" else "first"
    return exact(turned(align(ENDS[request.param](tiny), TEXTS, layers=layers)))


def kept_by(model: SentenceTransformer, depth: int) -> list[int]:
    return families.ENDS[depth] if model.config.matryoshka_layers else list(range(depth))


def by_hand(model: SentenceTransformer, size: Size, features: dict[str, Any]) -> Tensor:
    with cut_by_hand(model, size.num_layers, kept_by(model, size.num_layers)):
        pooled = model[1](model[0](dict(features)))["sentence_embedding"]
    [readout] = readouts(model)
    linear = readout.linear if size.num_layers == 4 else readout.shallower[str(size.num_layers)]
    embedded = linear(pooled)
    unit = isinstance(list(model)[-1], Normalize)
    return (functional.normalize(embedded, dim=1) if unit else embedded)[:, : size.dim]


@pytest.mark.parametrize(
    ("mini_batch_size", "sizes"),
    [(None, THROUGH_READOUTS), (2, [*THROUGH_READOUTS, Size(4, 32)])],
    ids=["shallow", "cached, and the full size"],
)
def test_a_loss_and_its_gradients(aligned: SentenceTransformer, mini_batch_size: int | None, sizes: list[Size]) -> None:
    loss = MultiSizeLoss(aligned, MultipleNegativesRankingLoss(aligned), sizes, mini_batch_size=mini_batch_size)
    found = total(loss(batch(aligned, 2)))
    each = [oracles.mnrl([by_hand(aligned, size, features) for features in batch(aligned, 2)]) for size in sizes]
    expected = torch.stack(each).mean()
    assert found.item() == pytest.approx(expected.item(), abs=1e-9)
    assert_gradients_close(gradients(aligned, found), gradients(aligned, expected), 1e-9)
