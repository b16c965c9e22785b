from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest
from _demo import data as demo_data


def read_back(sentence: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """Parse a sentence into its pattern and each part's meaning and wording, by exhaustive search."""
    patterns = (*demo_data.TRAIN_PATTERNS, *demo_data.TEST_PATTERNS)
    wordings = {
        part: "|".join(sorted((re.escape(word) for word in itertools.chain(*meanings)), key=len, reverse=True))
        for part, meanings in demo_data.PARTS.items()
    }
    for pattern in patterns:
        groups = {part: f"(?P<{part}>{words})" for part, words in wordings.items()}
        if found := re.fullmatch(pattern.format(**groups), sentence[:-1], flags=re.IGNORECASE):
            return pattern, {part: _index(part, found[part]) for part in demo_data.PARTS}
    raise AssertionError(f"no pattern fits {sentence!r}")


def _index(part: str, said: str) -> tuple[int, int]:
    (found,) = [
        (meaning, wording)
        for meaning, wordings in enumerate(demo_data.PARTS[part])
        for wording, words in enumerate(wordings)
        if words.lower() == said.lower()
    ]
    return found


def parts_said(sentence: str) -> dict[str, tuple[int, int]]:
    return read_back(sentence)[1]


def same_meanings(first: str, second: str) -> int:
    one, two = parts_said(first), parts_said(second)
    return sum(one[part][0] == two[part][0] for part in one)


def test_every_wording_has_one_meaning() -> None:
    for part, meanings in demo_data.PARTS.items():
        assert all(len(wordings) == 3 for wordings in meanings)
        repeated = [words for words, count in Counter(itertools.chain(*meanings)).items() if count > 1]
        assert not repeated, f"{part}: {repeated}"


@pytest.mark.parametrize("make", [demo_data.triplets, demo_data.scored_pairs, demo_data.hard_negatives])
def test_same_seed_gives_same_data(make: object) -> None:
    assert callable(make)
    first, again, other = make(50, seed=3), make(50, seed=3), make(50, seed=4)
    assert first.to_list() == again.to_list()
    assert first.to_list() != other.to_list()


def test_triplets_are_distinct_and_mean_what_they_should() -> None:
    triplets = demo_data.triplets(3000)
    assert len(set(triplets["anchor"])) == 3000
    for row in triplets.select(range(300)):
        anchor, positive, negative = row["anchor"], row["positive"], row["negative"]
        assert same_meanings(anchor, positive) == 6
        assert 3 <= same_meanings(anchor, negative) < 6
        # the paraphrase shares no wording with the anchor, the negative all unchanged parts
        said = parts_said(anchor)
        assert not any(said[part] == words for part, words in parts_said(positive).items())
        assert sum(said[part] == words for part, words in parts_said(negative).items()) == same_meanings(anchor, negative)


def test_hard_negatives_nearly_mean_the_query() -> None:
    rows = demo_data.hard_negatives(100, negatives=3)
    assert rows.column_names == ["query", "positive", "negative_1", "negative_2", "negative_3"]
    assert len(set(rows["query"])) == 100
    for row in rows.select(range(40)):
        query, positive, *negatives = row.values()
        assert same_meanings(query, positive) == 6
        assert all(3 <= same_meanings(query, negative) < 6 for negative in negatives)


@pytest.mark.slow
def test_a_search_has_one_document_for_each_query() -> None:
    data = demo_data.demo_search(50).dataset["default"]["test"]
    documents = dict(zip(data["corpus"]["id"], data["corpus"]["text"], strict=True))
    assert 50 < len(documents) <= 100
    assert len(data["queries"]) == 50
    for query in data["queries"]:
        (relevant,) = data["relevant_docs"][query["id"]]
        same = {key for key, text in documents.items() if same_meanings(query["text"], text) == 6}
        assert same == {relevant}


def test_scores_follow_the_shared_meanings() -> None:
    pairs = demo_data.scored_pairs(210)
    shared = [same_meanings(row["sentence1"], row["sentence2"]) for row in pairs]
    assert Counter(shared) == dict.fromkeys(range(7), 30)
    np.testing.assert_allclose(pairs["score"], np.array(shared) * 5 / 6)
    assert [len(names) for names in pairs["shared"]] == shared


def test_training_excludes_test_data() -> None:
    triplets, pairs = demo_data.triplets(2000), demo_data.scored_pairs(300)
    trained = set(itertools.chain(triplets["anchor"], triplets["positive"], triplets["negative"]))
    tested = list(itertools.chain(pairs["sentence1"], pairs["sentence2"]))
    assert not trained & set(tested)
    assert {read_back(sentence)[0] for sentence in list(trained)[:1000]} == set(demo_data.TRAIN_PATTERNS)
    assert {read_back(sentence)[0] for sentence in tested} == set(demo_data.TEST_PATTERNS)
    # some meanings occur only in the test data
    seen = {(part, meaning) for sentence in list(trained)[:1000] for part, (meaning, _) in parts_said(sentence).items()}
    unseen = [any((part, meaning) not in seen for part, (meaning, _) in parts_said(sentence).items()) for sentence in tested]
    assert np.mean(unseen) > 0.5
    assert {meaning for part, meaning in seen if part == "who"} == set(range(demo_data.TRAIN_MEANINGS["who"]))
