"""The maps of all depths: of every route, in one rotation, and whatever torch's defaults are."""

from __future__ import annotations

import pytest
import torch

from st_matryoshka2d import Size
from st_matryoshka2d.aligning import fit
from st_matryoshka2d.aligning.fit import fitted
from st_matryoshka2d.aligning.gather import Gathered
from st_matryoshka2d.aligning.refine import Refinement

DIM = 8
HOW = Refinement({}, 2, torch.device("cpu"), True)


def gathered(seed: int = 0, texts: int = 120) -> Gathered:
    states = torch.randn(texts, 3, DIM, generator=torch.Generator().manual_seed(seed))
    states[:, :2] += states[:, 2:]
    return Gathered(states, (states[:, 2], states[:, 1]), texts)


@pytest.mark.parametrize("rotation", [None, "keep"])
@pytest.mark.parametrize("default", ["float64", "meta"])
@pytest.mark.usefixtures("more_than_20_are_many")
def test_other_defaults_for_tensors_give_the_same_maps(default: str, rotation: str | None) -> None:
    """The device without data stands in for a GPU."""
    route = gathered()
    expected, kept, _ = fitted({"": route}, rotation, HOW, unit=True)  # type: ignore[arg-type]
    if default == "meta":
        with torch.device("meta"):
            found, again, _ = fitted({"": route}, rotation, HOW, unit=True)  # type: ignore[arg-type]
    else:
        torch.set_default_dtype(torch.float64)
        try:
            found, again, _ = fitted({"": route}, rotation, HOW, unit=True)  # type: ignore[arg-type]
        finally:
            torch.set_default_dtype(torch.float32)
    for depth, readout in expected[""].items():
        assert torch.equal(found[""][depth].weight, readout.weight)
        assert torch.equal(found[""][depth].bias, readout.bias)
    assert again == kept


def test_routes_share_one_rotation_and_the_mean_of_what_they_keep() -> None:
    one, other = gathered(0), gathered(1)
    both, kept, _ = fitted({"query": one, "document": other}, None, HOW, unit=False)
    assert torch.equal(both["query"][3].weight, both["document"][3].weight)
    _, first, _ = fitted({"": one}, "keep", HOW, unit=False)
    _, second, _ = fitted({"": other}, "keep", HOW, unit=False)
    _, mean, _ = fitted({"query": one, "document": other}, "keep", HOW, unit=False)
    assert mean[Size(2, DIM)] == pytest.approx((first[Size(2, DIM)] + second[Size(2, DIM)]) / 2)
    assert kept[Size(3, DIM)] == pytest.approx(1)


@pytest.mark.usefixtures("more_than_20_are_many")
def test_one_layer_has_no_maps_to_refine() -> None:
    route = gathered()
    made, kept, told = fitted({"": Gathered(route.states[:, -1:], route.close, 120)}, None, HOW, unit=True)
    assert list(made[""]) == [1]
    assert kept[Size(1, DIM)] == pytest.approx(1)
    assert told is None


@pytest.mark.parametrize("texts", [2000, 2001])
def test_only_more_than_two_thousand_texts_are_refined(texts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(fit, "refined", lambda readouts, states, whole, how: asked.append(len(whole)) or readouts)
    fitted({"": gathered(0, texts)}, "keep", HOW, unit=False)
    assert asked == ([] if texts == 2000 else [1801]), "on the texts that are not left out"
