"""User-written terms: what they may read, and their error messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor

from st_matryoshka2d import Size
from st_matryoshka2d.losses import PIC, SIA, LossStateCallback, MultiSizeLoss, Step, Term
from tests.support.losses import batch

pytestmark = pytest.mark.filterwarnings("ignore:MultiSizeLoss does not train the full size")


class Returns(Term):
    """A term that returns a given value, or the result of a function of the step."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, step: Step) -> dict[str, Tensor]:
        return self.value(step) if callable(self.value) else self.value

    def get_config_dict(self) -> dict[str, object]:
        return {}


class Unannounced(Returns):
    def observe(self, tokens: Any) -> Tensor:
        return torch.zeros(1, 1)


def built(model: SentenceTransformer, terms: Any) -> MultiSizeLoss:
    return MultiSizeLoss(model, MultipleNegativesRankingLoss(model), [Size(2, 8)], terms)


@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_a_term_adds_its_named_scalars(tiny: SentenceTransformer, mini_batch_size: int | None) -> None:
    term = Returns(lambda step: {"a": step.embeddings("2L-4d")[0].square().sum(), "b": torch.tensor(2.0)})
    loss = MultiSizeLoss(tiny, MultipleNegativesRankingLoss(tiny), [Size(2, 8)], [term], mini_batch_size=mini_batch_size)
    parts = loss(batch(tiny, 2))
    assert list(parts) == ["task", "a", "b"]
    assert parts["b"].item() == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.tensor(1.0), r"Returns.forward must return a dict of names and scalar tensors, got <class 'torch.Tensor'>"),
        (0.5, "scalar tensors, got <class 'float'>"),
        ({"a": 0.5}, r"scalar tensors, got \{'a': 0.5\}"),
        ({"a": torch.zeros(3)}, r"scalar tensors, got \{'a': torch.Size\(\[3\]\)\}"),
    ],
)
def test_refuses_invalid_return_values(tiny: SentenceTransformer, value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        built(tiny, [Returns(value)])(batch(tiny, 2))


def test_term_must_declare_what_it_reads(tiny: SentenceTransformer) -> None:
    term = Returns(lambda step: {"a": step.embeddings(Size(3, 8))[0].sum()})
    with pytest.raises(
        ValueError, match=r"3L-8d was not embedded in this step, only layers \[2\]. Add it to .*sizes_needed"
    ):
        built(tiny, [term])(batch(tiny, 2))


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (SIA, "list of Term objects.*got the class SIA"),
        (None, "list of Term objects.*got None"),
        ([PIC], r"got the class PIC; call it: PIC\(\)"),
        ([Unannounced({})], "Unannounced has an `observe` method, but observes=0"),
    ],
)
def test_refuses_objects_that_are_not_terms(tiny: SentenceTransformer, terms: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        built(tiny, terms)


@pytest.mark.parametrize("term", [SIA, PIC])
def test_a_term_with_parameters_belongs_to_one_loss(tiny: SentenceTransformer, term: Any) -> None:
    """A second loss would replace the parameters in the optimizer of the first."""
    shared = term()
    loss = built(tiny, [shared])
    before = list(loss.own.values())
    with pytest.raises(ValueError, match=f"This {term.__name__} already belongs to a loss"):
        built(tiny, [shared])
    assert all(now is then for now, then in zip(loss.terms.parameters(), before, strict=True))


def test_the_callback_takes_losses_only(tiny: SentenceTransformer) -> None:
    for wrong, name in ((tiny, "SentenceTransformer"), ([1], "list"), ("x", "str"), ({"a": 1}, "int")):
        with pytest.raises(TypeError, match=f"or its losses by dataset, got {name}"):
            LossStateCallback(wrong)  # type: ignore[arg-type]
