"""The SMAE loss and its gradients, compared with equations 6 to 9 of Starbucks as a slow loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from st_matryoshka2d.pretraining import SMAEForPreTraining
from tests.support.quick import quick
from tests.support.smae import NARROW_HEADS, PLACES, batch, masked_lm, randomise, slow

ALL = ["1L-4d", "2L-8d", "3L-16d", "4L-32d"]


@dataclass(frozen=True)
class Case:
    """One set of arguments."""

    name: str
    sizes: list[str] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("linear", ALL),
    Case("head", ALL, {"projection": "head"}),
    Case("without a decoder", ALL, {"mae": False}),
    Case("head, without a decoder", ALL, {"projection": "head", "mae": False}),
    Case("two decoder layers", ["2L-8d", "4L-32d"], {"decoder_layers": 2}),
    Case("without the full size", ["2L-8d", "3L-32d", "4L-31d"]),
    Case("one size", ["3L-5d"]),
    Case("two widths of one layer", ["2L-32d", "2L-8d", "4L-32d"]),
    Case("plain masked language modelling", ["4L-32d"], {"projection": "head", "mae": False}),
    Case("the ladder"),
]
# Sizes do not depend on the family; projections and decoders do.
TABLE = [("bert", case) for case in CASES] + [
    (family, case)
    for family in PLACES
    for case in (CASES[0], CASES[1], CASES[4])
    if family != "bert" and not (case.name == "head" and family in NARROW_HEADS)
]


def trained(family: str, case: Case, seed: int = 0) -> SMAEForPreTraining:
    """Build a model in training mode and double precision, with changed W and decoder."""
    model = SMAEForPreTraining(masked_lm(family, seed=seed), case.sizes, **case.settings)
    with torch.no_grad():
        randomise(model.decoder)
        if model.W is not None:
            model.W.add_(torch.randn_like(model.W), alpha=0.2)
    return model.double().train()


def gradients(model: SMAEForPreTraining, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradient of every parameter; zero if unused."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found, strict=True))


def assert_close(found: Tensor, expected: Tensor, name: str) -> None:
    """Check closeness; some families compute rotations or norms in single precision, else 1e-12 would suffice."""
    difference = float((found - expected).detach().abs().max())
    assert difference <= 1e-6 * max(1.0, float(expected.detach().abs().max())), f"{name}: {difference:.1e}"


@pytest.mark.parametrize(("family", "case"), quick(TABLE, *TABLE[:5], ("modernbert", CASES[0])), ids=str)
def test_values_and_gradients_are_those_of_the_slow_loop(family: str, case: Case) -> None:
    model, inputs = trained(family, case), batch()
    projection, mae = case.settings.get("projection", "linear"), case.settings.get("mae", True)
    loss, parts = slow(model, family, inputs, projection, mae)
    output = model(**inputs)
    assert output.parts.keys() == parts.keys()
    for name, part in parts.items():
        assert_close(output.parts[name], part, name)
        assert not output.parts[name].requires_grad
    assert_close(output.loss, loss, "loss")
    assert_close(torch.stack(list(output.parts.values())).sum() / len(model.sizes), loss, "sum of the parts")
    expected = gradients(model, loss)
    for name, gradient in gradients(model, output.loss).items():
        assert_close(gradient, expected[name], name)
    assert not mae or all(expected[name].any() for name in expected if name.startswith("decoder.") and "key" not in name)
    assert model.W is None or expected["W"].any()


def test_w_starts_as_the_identity() -> None:
    """Then prefixes are padded with zeros, and the full size is plain masked language modelling."""
    model, inputs = SMAEForPreTraining(masked_lm(), ALL).double(), batch()
    assert model.W is not None
    assert torch.equal(model.W, torch.eye(32).double())
    loss, parts = slow(model, "bert", inputs)
    output = model(**inputs)
    assert_close(output.loss, loss, "loss")
    arguments = {name: inputs[name] for name in ("input_ids", "attention_mask", "labels")}
    assert_close(output.parts["4L-32d/encoder"], model.mlm(**arguments).loss, "full size")
    assert float((parts["1L-4d/encoder"] - parts["4L-32d/encoder"]).detach().abs()) > 1e-3


def test_each_side_is_a_mean_over_its_own_masked_tokens() -> None:
    """Not over texts: the mean loss of two single-text batches differs from the loss of both texts together."""
    model, inputs = trained("bert", CASES[0]), batch(rows=2, length=16)
    masked = {side: inputs[side].ne(-100).sum(dim=1).double() for side in ("labels", "decoder_labels")}
    assert all(float(counts[0]) != float(counts[1]) for counts in masked.values())
    texts = [model(**{name: value[row : row + 1] for name, value in inputs.items()}).parts for row in range(2)]
    for name, part in model(**inputs).parts.items():
        counts = masked["labels" if name.endswith("/encoder") else "decoder_labels"]
        mean = sum(count * alone[name] for count, alone in zip(counts, texts, strict=True)) / counts.sum()
        assert_close(part, mean, name)


def test_without_an_attention_mask_every_token_counts() -> None:
    model, inputs = trained("bert", CASES[0]), batch()
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    expected, _ = slow(model, "bert", inputs)
    del inputs["attention_mask"]
    assert_close(model(**inputs).loss, expected, "loss")


@pytest.mark.parametrize(
    ("changed", "moved"),
    [
        ("mlm.bert.encoder.layer.2", {"3L-16d/encoder", "3L-16d/decoder", "4L-32d/encoder", "4L-32d/decoder"}),
        ("decoder.0", {"1L-4d/decoder", "2L-8d/decoder", "3L-16d/decoder", "4L-32d/decoder"}),
    ],
)
def test_parts_that_each_block_affects(changed: str, moved: set[str]) -> None:
    """An encoder block affects sizes that include it and, through CLS, their decoders; a decoder block only decoders."""
    model, inputs = trained("bert", CASES[0]), batch()
    before = model(**inputs).parts
    with torch.no_grad():
        model.get_submodule(changed).attention.output.dense.weight.mul_(1.5)
    after = model(**inputs).parts
    assert {name for name, part in after.items() if part != before[name]} == moved


@pytest.mark.parametrize("family", ["bert", "modernbert", "eurobert"])
def test_the_decoder_may_be_deeper_than_the_encoder(family: str) -> None:
    """Some families run only as many blocks as their config states."""
    model = SMAEForPreTraining(masked_lm(family, num_hidden_layers=1), ["1L-8d"], decoder_layers=2).double()
    with torch.no_grad():
        randomise(model.decoder)
    expected, _ = slow(model, family, batch())
    assert_close(model(**batch()).loss, expected, "loss")
