"""The coordinates of all sizes: those of the model, or a rotation of them whose first coordinates carry more."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from st_matryoshka2d.sizes import mrl_dims

if TYPE_CHECKING:
    from jaxtyping import Float

Pairs: TypeAlias = tuple[Tensor, Tensor]  # both (pairs, depths, dim), the whole model last
Rotation: TypeAlias = Literal["keep", "similarity", "search"]
ROTATIONS: tuple[Rotation, ...] = ("keep", "similarity", "search")

_MIXED = (0.2, 0.4, 0.6, 1.0)  # shares of the directions that are mixed at random, to try
_GROUPS = 10  # of pairs; how much these differ tells what is chance
_FEWEST = 10  # pairs in a group
_SURE = 2.0  # standard errors by which a rotation must be better than the coordinates as they are

_SHARES = (0.15, 0.3, 0.5)  # of the words of a text that its copy lacks
_FEWEST_WORDS = 6
_NEIGHBOURS = 2  # of each text
_SAME = 0.98  # a cosine above which texts count as copies
_MOST = 3000  # texts whose neighbours are looked for


def chosen_rotation(
    spread: Float[Tensor, "dim dim"], pairs: Mapping[str, Pairs], rotation: Rotation | None
) -> Float[Tensor, "dim dim"]:
    """Return the coordinates whose narrow sizes agree best with the full one.

    Args:
        spread: Covariance of what the depths predict of the whole model's embeddings.
        pairs: Pairs of texts with all dims, by what they are for: similarity and search.
        rotation: What to choose for. None: the coordinates stay unless a rotation is clearly
            better for similarity at the full depth, and search decides between rotations that are
            as good. Otherwise all depths judge.
    """
    identity = torch.eye(len(spread), dtype=torch.float32, device=spread.device)
    told_by = rotation or "similarity"
    if rotation == "keep" or len(pairs[told_by][0]) < _GROUPS * _FEWEST:
        return identity
    if rotation is None:  # an index of the whole model is at stake, so that alone decides
        pairs = {kind: (one[:, -1:], other[:, -1:]) for kind, (one, other) in pairs.items()}
    turns = [identity, *(rotated(spread, share) for share in _MIXED)]
    judged = {kind: np.stack([_agreements(*of_kind, turn) for turn in turns]) for kind, of_kind in pairs.items()}
    told = judged[told_by]
    if rotation is not None:
        return turns[int(told.mean(1).argmax())]
    best = 1 + int(told[1:].mean(1).argmax())
    if not _clearly(told[best] - told[0]):
        return identity
    # Neighbours tell rotations apart that close texts do not.
    as_good = [place for place in range(1, len(turns)) if not _clearly(told[best] - told[place])]
    by_search = judged["search"].mean(1)
    return turns[max(as_good, key=lambda place: by_search[place])]


def _clearly(gains: NDArray[np.float64]) -> bool:
    """Whether gains of groups of pairs are more than chance."""
    return bool(gains.mean() > _SURE * gains.std(ddof=1) / math.sqrt(len(gains)))


def rotated(spread: Float[Tensor, "dim dim"], share: float) -> Float[Tensor, "dim dim"]:
    """Sort directions by how much of them is predicted, and mix the leading ones at random."""
    # In sorted order the first few coordinates encode the topics of the fitted texts, and are poor
    # for other texts.
    _, vectors = torch.linalg.eigh(spread)
    ordered = vectors.flip(1).T
    # the signs of eigenvectors are arbitrary
    ordered = torch.where(ordered.sum(1, keepdim=True) < 0, -ordered, ordered)
    mixed = max(1, round(share * len(spread)))
    draw = torch.Generator().manual_seed(0)
    mix, _ = torch.linalg.qr(torch.randn(mixed, mixed, generator=draw, dtype=spread.dtype, device=draw.device))
    return torch.cat([mix @ ordered[:mixed], ordered[mixed:]]).float()


def _agreements(
    one: Float[Tensor, "pairs depths dim"], other: Float[Tensor, "pairs depths dim"], turn: Float[Tensor, "dim dim"]
) -> NDArray[np.float64]:
    """For each group of pairs, correlate the ranks of narrow cosines with those of full ones, averaged over sizes."""
    full = cosine_similarity(one[:, -1], other[:, -1]).numpy()
    left, right = one @ turn.T, other @ turn.T
    every = mrl_dims(len(turn)) or [len(turn)]
    dims = every[1:] or every  # cosines of 8 dims differ mostly by chance
    cosines = [cosine_similarity(left[..., :dim], right[..., :dim], dim=-1) for dim in dims]
    narrow = torch.cat(cosines, dim=1).T.numpy()
    groups = np.array_split(np.arange(len(full)), _GROUPS)
    by_group = [[spearmanr(by_size[group], full[group])[0] for by_size in narrow] for group in groups]
    # equal cosines have no correlation
    means: NDArray[np.float64] = np.nan_to_num(np.array(by_group)).mean(1)
    return means


def with_words_left_out(texts: Sequence[str], most: int) -> tuple[list[int], list[str]]:
    """Return the places of some long texts, and a copy of each with some words left out; characters if it has no spaces."""
    draw = random.Random(0)
    places: list[int] = []
    copies: list[str] = []
    for place in draw.sample(range(len(texts)), len(texts)):
        text = texts[place]
        gap, words = (" ", text.split()) if len(text.split()) > 1 else ("", list(text))
        if len(words) < _FEWEST_WORDS:
            continue
        count = max(1, round(len(words) * (1 - _SHARES[len(places) % len(_SHARES)])))
        places.append(place)
        copies.append(gap.join(words[word] for word in sorted(draw.sample(range(len(words)), count))))
        if len(places) == most:
            break
    return places, copies


def neighbours(whole: Float[Tensor, "texts dim"]) -> Pairs:
    """Pair each text with the texts that the whole model finds nearest to it, but not with its copies."""
    rows = whole[torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))[:_MOST]]
    unit = normalize(rows)
    cosines = unit @ unit.T
    nearest = cosines.masked_fill(cosines > _SAME, -2).topk(min(_NEIGHBOURS, len(rows))).indices
    return rows.repeat_interleave(nearest.shape[1], 0)[:, None], rows[nearest.flatten()][:, None]
