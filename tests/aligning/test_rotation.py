"""The rotation of all sizes: what it mixes, and when it is chosen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from st_matryoshka2d.aligning.rotation import Rotation, chosen_rotation, rotated

DIM = 16


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def spread(scales: Tensor) -> Tensor:
    turn = torch.linalg.qr(drawn(0, len(scales), len(scales)).double())[0]
    return turn @ scales.double().diag() @ turn.T


@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
def test_only_the_leading_share_is_mixed(share: float) -> None:
    scales = torch.arange(DIM, 0, -1)
    covariance = spread(scales)
    turn = rotated(covariance, share).double()
    torch.testing.assert_close(turn @ turn.T, torch.eye(DIM).double(), atol=1e-5, rtol=0)
    assert torch.equal(turn.float(), rotated(covariance.clone(), share))
    mixed, within = round(share * DIM), turn @ covariance @ turn.T
    assert float(within.diag()[:mixed].sum()) == pytest.approx(float(scales[:mixed].sum()), rel=1e-5)
    torch.testing.assert_close(within[mixed:, mixed:], scales[mixed:].double().diag(), atol=1e-4, rtol=0)
    assert (within[:mixed, :mixed] - within[:mixed, :mixed].diag().diag()).abs().max() > 0.1, "the leading ones are mixed"


@pytest.mark.parametrize("between", [0.0, 0.5], ids=["apart", "with directions whose sum is 0"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_few_dims_can_be_rotated(dim: int, between: float) -> None:
    turn = rotated(torch.eye(dim).double() + between, 0.2)
    torch.testing.assert_close(turn @ turn.T, torch.eye(dim), atol=1e-5, rtol=0)


# Standard deviations of the coordinates: what narrow sizes need is in front, or at the end.
FRONT, BEHIND = 0.7 ** torch.arange(DIM), (0.7 ** torch.arange(DIM)).flip(0)


def pairs(scales: Tensor, texts: int = 600) -> tuple[Tensor, Tensor]:
    """Texts and others that are closer to some than to others."""
    one = drawn(1, texts, DIM) * scales
    return one, one + torch.rand(texts, 1, generator=torch.Generator().manual_seed(2)) * 2 * drawn(3, texts, DIM) * scales


def choose(close: Tensor, near: Tensor, rotation: Rotation | None, texts: int = 600) -> Tensor:
    told = {"similarity": pairs(close, texts), "search": pairs(near, texts)}
    return chosen_rotation(BEHIND.square().diag().double(), told, rotation)


@pytest.mark.parametrize(
    ("close", "near", "rotation", "turns"),
    [
        (BEHIND, BEHIND, None, True),
        (BEHIND, BEHIND, "keep", False),
        (FRONT, FRONT, None, False),
        (FRONT, BEHIND, None, False),
        (FRONT, BEHIND, "similarity", False),
        (FRONT, BEHIND, "search", True),
        (BEHIND, FRONT, "similarity", True),
        (BEHIND, FRONT, "search", False),
    ],
    ids=[
        "behind",
        "keep",
        "front",
        "front, none",
        "front, similarity",
        "front, search",
        "behind, similarity",
        "behind, search",
    ],
)
def test_a_rotation_is_chosen_only_if_its_pairs_need_one(
    close: Tensor, near: Tensor, rotation: Rotation | None, turns: bool
) -> None:
    turn = choose(close, near, rotation)
    torch.testing.assert_close(turn @ turn.T, torch.eye(DIM), atol=1e-5, rtol=0)
    assert torch.equal(turn, torch.eye(DIM)) is not turns
    assert torch.equal(turn, choose(close, near, rotation)), "the same pairs, the same rotation"


def test_few_pairs_choose_nothing() -> None:
    assert torch.equal(choose(BEHIND, BEHIND, None, texts=99), torch.eye(DIM))
    assert not torch.equal(choose(BEHIND, BEHIND, None, texts=100), torch.eye(DIM))
