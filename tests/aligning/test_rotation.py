"""The rotation of all sizes: what it mixes, when it is chosen, and the pairs that it is judged by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from st_matryoshka2d.aligning.rotation import Rotation, chosen_rotation, neighbours, rotated, with_words_left_out

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
    other = one + torch.rand(texts, 1, generator=torch.Generator().manual_seed(2)) * 2 * drawn(3, texts, DIM) * scales
    return one[:, None], other[:, None]


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


@pytest.mark.parametrize("rotation", ["similarity", "search"])
def test_the_best_for_its_pairs_is_taken_though_not_clearly_better(rotation: Rotation) -> None:
    flat = torch.ones(DIM)
    assert torch.equal(choose(flat, flat, None), torch.eye(DIM))
    one, other = (rows[:, 0] for rows in pairs(flat))
    full = torch.cosine_similarity(one, other)

    def agreement(turn: Tensor) -> float:
        narrow = torch.cosine_similarity((one @ turn.T)[:, :8], (other @ turn.T)[:, :8])
        groups = zip(narrow.split(60), full.split(60), strict=True)
        return float(np.mean([spearmanr(part, whole)[0] for part, whole in groups]))

    spread = BEHIND.square().diag().double()
    tried = [torch.eye(DIM), *(rotated(spread, share) for share in (0.2, 0.4, 0.6, 1.0))]
    best = max(tried, key=agreement)
    assert not torch.equal(best, torch.eye(DIM))
    assert torch.equal(choose(flat, flat, rotation), best)


def test_all_depths_judge_a_rotation_that_is_asked_for() -> None:
    """The whole model alone needs no rotation, its depths do."""
    alone = pairs(FRONT)
    one, other = (torch.cat([*[rows.flip(-1)] * 5, rows], dim=1) for rows in alone)
    spread = BEHIND.square().diag().double()
    cases: list[tuple[tuple[Tensor, Tensor], Rotation | None, bool]] = [
        (alone, "similarity", False),
        ((one, other), None, False),
        ((one, other), "similarity", True),
    ]
    for close, rotation, turns in cases:
        turn = chosen_rotation(spread, {"similarity": close, "search": pairs(BEHIND)}, rotation)
        assert torch.equal(turn, torch.eye(DIM)) is not turns


def test_few_pairs_choose_nothing() -> None:
    assert torch.equal(choose(BEHIND, BEHIND, None, texts=99), torch.eye(DIM))
    assert not torch.equal(choose(BEHIND, BEHIND, None, texts=100), torch.eye(DIM))


def test_copies_lack_shares_of_the_words_in_order() -> None:
    texts = [" ".join(f"w{number}" for number in range(20)) for _ in range(30)]
    places, copies = with_words_left_out(texts, 1000)
    assert sorted(places) == list(range(30))
    assert len(set(copies)) > 25, "each copy lacks other words"
    kept = [[int(word[1:]) for word in copy.split(" ")] for copy in copies]
    assert all(numbers == sorted(set(numbers)) for numbers in kept)
    assert [len(numbers) for numbers in kept] == [17, 14, 10] * 10, "of 20 words 3, 6 and 10 are left out in turn"
    assert with_words_left_out(texts, 1000) == (places, copies)


def test_texts_without_spaces_lack_characters_and_short_ones_are_skipped() -> None:
    places, copies = with_words_left_out(
        ["今天天气很好我们去", "a b c d e", "abcde", "", " one two three four five six "], 9
    )
    assert sorted(places) == [0, 4]
    by_place = dict(zip(places, copies, strict=True))
    assert " " not in by_place[0]
    characters = iter("今天天气很好我们去")
    assert all(character in characters for character in by_place[0]), "in order"
    assert len(by_place[0]) in (8, 6, 4)


def test_neighbours_are_the_nearest_texts_but_not_copies() -> None:
    rows = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    rows[1] = 1.01 * rows[0]
    one, other = (found[:, 0] for found in neighbours(rows))
    found = {tuple(left.tolist()): set() for left in one}
    for left, right in zip(one, other, strict=True):
        found[tuple(left.tolist())].add(tuple(right.tolist()))
    assert len(one) == 80
    for row in rows:
        cosines = {tuple(each.tolist()): float(torch.cosine_similarity(row, each, dim=0)) for each in rows}
        nearest = sorted((each for each in cosines if cosines[each] <= 0.98), key=lambda each: -cosines[each])[:2]
        assert found[tuple(row.tolist())] == set(nearest)
