"""Pairs that coordinates are judged by: copies that lack words, and neighbours in the corpus."""

from __future__ import annotations

import torch

from st_matryoshka2d.aligning.rotation import neighbours, with_words_left_out


def test_copies_lack_shares_of_the_words_in_order() -> None:
    texts = [" ".join(f"w{number}" for number in range(20)) for _ in range(30)]
    places, copies = with_words_left_out(texts, 1000)
    assert sorted(places) == list(range(30))
    assert len(set(copies)) > 25, "each copy lacks other words"
    kept = [[int(word[1:]) for word in copy.split(" ")] for copy in copies]
    assert all(numbers == sorted(set(numbers)) for numbers in kept)
    assert [len(numbers) for numbers in kept] == [17, 14, 10] * 10, "of 20 words 3, 6 and 10 are left out in turn"
    assert with_words_left_out(texts, 1000) == (places, copies)


def test_copies_of_their_own_text_and_at_most_so_many() -> None:
    texts = [" ".join(f"{name}{number}" for number in range(8)) for name in "abcdefgh"]
    places, copies = with_words_left_out(texts, 5)
    assert len(places) == len(copies) == 5
    for place, copy in zip(places, copies, strict=True):
        assert set(copy.split()) < set(texts[place].split())


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
    one, other = neighbours(rows)
    found = {tuple(left.tolist()): set() for left in one}
    for left, right in zip(one, other, strict=True):
        found[tuple(left.tolist())].add(tuple(right.tolist()))
    assert len(one) == 80
    for row in rows:
        cosines = {tuple(each.tolist()): float(torch.cosine_similarity(row, each, dim=0)) for each in rows}
        nearest = sorted((each for each in cosines if cosines[each] <= 0.98), key=lambda each: -cosines[each])[:2]
        assert found[tuple(row.tolist())] == set(nearest)
