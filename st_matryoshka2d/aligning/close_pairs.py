"""Pairs of texts to judge coordinates by, made of raw texts: close in meaning, or neighbours in the corpus."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

Pairs = tuple[Float[Tensor, "pairs dim"], Float[Tensor, "pairs dim"]]

_SHARES = (0.15, 0.3, 0.5)  # of the words of a text that its copy lacks
_FEWEST_WORDS = 6
_NEIGHBOURS = 2  # of each text
_SAME = 0.98  # a cosine above which texts count as copies
_MOST = 3000  # texts whose neighbours are looked for


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
        kept = max(1, round(len(words) * (1 - _SHARES[len(places) % len(_SHARES)])))
        places.append(place)
        copies.append(gap.join(words[word] for word in sorted(draw.sample(range(len(words)), kept))))
        if len(places) == most:
            break
    return places, copies


def neighbours(whole: Float[Tensor, "texts dim"]) -> Pairs:
    """Pair each text with the texts that the whole model finds nearest to it, but not with its copies."""
    rows = whole[torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))[:_MOST]]
    unit = normalize(rows)
    cosines = unit @ unit.T
    nearest = cosines.masked_fill(cosines > _SAME, -2).topk(min(_NEIGHBOURS, len(rows))).indices
    return rows.repeat_interleave(nearest.shape[1], 0), rows[nearest.flatten()]
