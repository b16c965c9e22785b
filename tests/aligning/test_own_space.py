"""The maps of all depths, and how well each size agrees with the full one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d import DataWarning, Size, align
from st_matryoshka2d.aligning import own_space as module
from st_matryoshka2d.aligning.agreement import agreement_within, too_few
from st_matryoshka2d.aligning.own_space import fit
from st_matryoshka2d.aligning.refine import Refinement
from st_matryoshka2d.aligning.ridge import Fitted, fit_readout
from st_matryoshka2d.aligning.sample import Gathered
from tests.support.pipelines import TEXTS

WIDTH = 8


HOW = Refinement((), 2, torch.device("cpu"), True)


def gathered(seed: int = 0, texts: int = 120) -> Gathered:
    states = torch.randn(texts, 3, WIDTH, generator=torch.Generator().manual_seed(seed))
    states[:, :2] += states[:, 2:]
    return Gathered(states, (states, states.roll(1, 1)))


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
    assert both.agreement[Size(3, WIDTH)] == pytest.approx(1)
    alone = [fit({"": route}, "keep", HOW, 120, unit=False).agreement for route in routes.values()]
    mean = fit(routes, "keep", HOW, 120, unit=False).agreement
    size = Size(2, WIDTH)
    assert mean[size] == pytest.approx((alone[0][size] + alone[1][size]) / 2)


@pytest.mark.parametrize("texts", [2000, 2001])
def test_only_more_than_two_thousand_texts_are_refined(texts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "refined", lambda readouts, states, whole, how: asked.append(len(whole)) or readouts)
    fit({"": gathered(0, texts)}, "keep", HOW, texts, unit=False)
    assert asked == ([] if texts == 2000 else [1801]), "on the texts that are not left out"


def test_what_texts_of_one_kind_share_does_not_worsen_others() -> None:
    """Their mean moves from a depth to the whole model; others have no part in it, and are nearly the same at both."""
    texts, width = 300, 16
    own = drawn(5, texts, width)
    shared = 1.5 * torch.nn.functional.normalize(drawn(6, width), dim=0)
    states = torch.stack([own + 0.5 * drawn(7, texts, width), own + shared], dim=1)
    readout = fit({"": Gathered(states, (states, states))}, "keep", HOW, texts, unit=False).readouts[""][1]
    others = drawn(8, 60, width)
    shallow = others + 0.5 * drawn(9, 60, width)
    assert correlation(readout(shallow), others) > correlation(shallow, others) - 0.02


LAYERS, DIM = 3, 32


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def embedded(texts: int) -> Tensor:
    """Embeddings whose depths come closer to the whole model and to its coordinates, (texts, layers, dim)."""
    whole = drawn(0, texts, DIM)
    turned = whole @ torch.linalg.qr(drawn(1, DIM, DIM))[0]
    depths = [share * whole + (1 - share) * turned + 0.3 * drawn(2, texts, DIM) for share in (0.4, 0.6)]
    return torch.stack([*depths, whole], dim=1)


def fitted(states: Tensor) -> dict[int, Fitted]:
    return {depth: fit_readout(states[:, depth - 1], states[:, -1]) for depth in range(1, states.shape[1])}


def correlation(small: Tensor, whole: Tensor) -> float:
    """For each text, correlate its cosines to the others by both sizes; return the mean over texts."""
    found = []
    for row in range(len(small)):
        cosines = [
            [float(torch.cosine_similarity(rows[row], rows[other], dim=0)) for other in range(len(small)) if other != row]
            for rows in (small, whole)
        ]
        found.append(np.corrcoef(cosines)[0, 1])
    return float(np.mean(found))


def test_agreement_is_the_mean_correlation_of_each_texts_similarities() -> None:
    states = embedded(24)
    by_depth, whole = fitted(states), states[:, -1]
    found = agreement_within(by_depth, whole)
    sizes = [Size(depth, dim) for depth in (1, 2, 3) for dim in (8, 16, DIM)]
    assert set(sizes) <= found.keys()
    for size in sizes:
        one = by_depth.get(size.num_layers)
        small, texts = (whole, slice(None)) if one is None else (one.predicted, one.held)
        assert found[size] == pytest.approx(correlation(small[:, : size.dim], whole[texts]), abs=1e-5)
    assert found[Size(LAYERS, DIM)] == pytest.approx(1, abs=1e-6)


def test_one_layer_is_only_narrowed() -> None:
    whole = drawn(0, 12, DIM)
    found = agreement_within({}, whole)
    assert {size.num_layers for size in found} == {1}
    assert found[Size(1, 8)] == pytest.approx(correlation(whole[:, :8], whole), abs=1e-5)
    assert too_few({}, whole[:, None], 12) is None, "there is nothing to align"


def test_below_a_hundred_texts_it_tells_what_was_measured() -> None:
    states = embedded(99)
    by_depth = fitted(states)
    told = too_few(by_depth, states, 99)
    assert told is not None
    assert told.startswith("99 texts are too few to align this model well. 10,000 ")
    changes = []
    for depth, one in by_depth.items():
        rows = (states[one.held, depth - 1], one.predicted)
        before, after = (correlation(each, states[one.held, -1]) for each in rows)
        changes.append(f"{depth}L {before:.2f} to {after:.2f}")
    assert told.endswith(f": {', '.join(changes)}.")


def test_it_is_silent_from_a_hundred_texts() -> None:
    states = embedded(100)
    assert too_few(fitted(states), states, 100) is None


def test_near_copies_are_named_and_three_texts_not_measured() -> None:
    states = embedded(16)
    told = too_few(fitted(states), states, 1120)
    assert told is not None
    assert told.startswith("1,120 texts, of which about 16 are not near copies, are too few to align this model well.")
    told = too_few(fitted(states[:3]), states[:3], 3)
    assert told is not None
    assert "Sizes hardly change." in told


def test_align_warns_once_where_it_is_called(tiny: SentenceTransformer) -> None:
    with pytest.warns(DataWarning) as told:
        align(tiny, TEXTS[:8], steps=1)
    assert len(told) == 1
    assert "8 texts" in str(told[0].message)
    assert told[0].filename == __file__
