"""The maps of all depths: of every route, in one rotation, and whatever torch's defaults are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from st_matryoshka2d import Size
from st_matryoshka2d.aligning import fit as module
from st_matryoshka2d.aligning.fit import fit
from st_matryoshka2d.aligning.gather import Gathered
from st_matryoshka2d.aligning.refine import Refinement

DIM = 8
HOW = Refinement((), 2, torch.device("cpu"), True)


def gathered(seed: int = 0, texts: int = 120) -> Gathered:
    states = torch.randn(texts, 3, DIM, generator=torch.Generator().manual_seed(seed))
    states[:, :2] += states[:, 2:]
    return Gathered(states, (states[:, 2], states[:, 1]))


@pytest.mark.parametrize("rotation", [None, "keep"])
@pytest.mark.parametrize("default", ["float64", "meta"])
@pytest.mark.usefixtures("more_than_20_are_many")
def test_other_defaults_for_tensors_give_the_same_maps(default: str, rotation: Any) -> None:
    """The device without data stands in for a GPU."""
    route = gathered()
    expected = fit({"": route}, rotation, HOW, 120, unit=True)
    if default == "meta":
        with torch.device("meta"):
            found = fit({"": route}, rotation, HOW, 120, unit=True)
    else:
        torch.set_default_dtype(torch.float64)
        try:
            found = fit({"": route}, rotation, HOW, 120, unit=True)
        finally:
            torch.set_default_dtype(torch.float32)
    for depth, readout in expected.readouts[""].items():
        assert torch.equal(found.readouts[""][depth].weight, readout.weight)
        assert torch.equal(found.readouts[""][depth].bias, readout.bias)
    assert found.agreement == expected.agreement


def test_routes_share_one_rotation_and_the_mean_of_what_they_keep() -> None:
    routes = {"query": gathered(0), "document": gathered(1)}
    both = fit(routes, None, HOW, 120, unit=False)
    assert torch.equal(both.readouts["query"][3].weight, both.readouts["document"][3].weight)
    assert both.agreement[Size(3, DIM)] == pytest.approx(1)
    alone = [fit({"": route}, "keep", HOW, 120, unit=False).agreement for route in routes.values()]
    mean = fit(routes, "keep", HOW, 120, unit=False).agreement
    size = Size(2, DIM)
    assert mean[size] == pytest.approx((alone[0][size] + alone[1][size]) / 2)


@pytest.mark.usefixtures("more_than_20_are_many")
def test_one_layer_has_no_maps_to_refine() -> None:
    route = gathered()
    found = fit({"": Gathered(route.states[:, -1:], route.close)}, None, HOW, 120, unit=True)
    assert list(found.readouts[""]) == [1]
    assert found.agreement[Size(1, DIM)] == pytest.approx(1)
    assert found.told == []


@pytest.mark.parametrize("texts", [2000, 2001])
def test_only_more_than_two_thousand_texts_are_refined(texts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "refined", lambda readouts, states, whole, how: asked.append(len(whole)) or readouts)
    fit({"": gathered(0, texts)}, "keep", HOW, texts, unit=False)
    assert asked == ([] if texts == 2000 else [1801]), "on the texts that are not left out"
