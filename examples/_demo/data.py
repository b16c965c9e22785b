"""A small generated data set, so that every example runs without a download.

A scene has six parts (who, did, many, what, where, when). Every part has several meanings and every
meaning several wordings. Two sentences can therefore mean the same in different words, or share
most words and differ in meaning. Some meanings and sentence patterns are held out from training,
and every test sentence uses a held-out pattern.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from datasets import Dataset, DatasetDict
from mteb import TaskMetadata
from mteb.abstasks import AbsTask, AbsTaskSTS

from _demo.words import ALL_MEANINGS, PARTS, TRAIN_MEANINGS
from st_matryoshka2d import retrieval_task

__all__ = ["PARTS", "TEST_PATTERNS", "TRAIN_MEANINGS", "TRAIN_PATTERNS", "DemoSTS"]
__all__ += ["demo_search", "demo_task", "hard_negatives", "scored_pairs", "triplets"]

TRAIN_PATTERNS = ("{who} {did} {many} {what} {where} {when}", "{when}, {who} {did} {many} {what} {where}")
TEST_PATTERNS = ("{when}, {where}, {who} {did} {many} {what}", "{where}, {who} {did} {many} {what} {when}")

Scene = dict[str, int]


def triplets(n: int = 6000, seed: int = 0) -> Dataset:
    """Training triplets: a sentence, the same scene in other words, and a near copy that means something else.

    Args:
        n: Number of triplets, with distinct anchors.
        seed: The same seed gives the same triplets.

    Returns:
        Columns anchor, positive, negative.
    """
    rng = random.Random(seed)
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < n:
        scene, wording = _scene(rng, TRAIN_MEANINGS), _wording(rng)
        anchor, positive = _say(rng, scene, wording, TRAIN_PATTERNS), _say(rng, scene, _other(rng, wording), TRAIN_PATTERNS)
        changed = rng.sample(list(PARTS), k=rng.choice((1, 2, 3)))
        negative = _say(rng, _change(rng, scene, changed, TRAIN_MEANINGS), wording, TRAIN_PATTERNS)
        rows[anchor] = {"anchor": anchor, "positive": positive, "negative": negative}
    return Dataset.from_list(list(rows.values()))


def hard_negatives(n: int = 1000, negatives: int = 7, seed: int = 2) -> Dataset:
    """Training rows for search: a scene, the same in other words, and several near copies that mean something else.

    Args:
        n: Number of rows, with distinct queries.
        negatives: Number of near copies in a row.
        seed: The same seed gives the same rows.

    Returns:
        Columns query, positive, negative_1, negative_2 and so on.
    """
    rng = random.Random(seed)
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < n:
        scene, wording = _scene(rng, TRAIN_MEANINGS), _wording(rng)
        query, positive = _say(rng, scene, wording, TRAIN_PATTERNS), _say(rng, scene, _other(rng, wording), TRAIN_PATTERNS)
        rows[query] = {"query": query, "positive": positive}
        for number in range(1, negatives + 1):
            changed = _change(rng, scene, rng.sample(list(PARTS), k=rng.choice((1, 2, 3))), TRAIN_MEANINGS)
            rows[query][f"negative_{number}"] = _say(rng, changed, wording, TRAIN_PATTERNS)
    return Dataset.from_list(list(rows.values()))


def scored_pairs(n: int = 1000, seed: int = 1) -> Dataset:
    """Test pairs, scored by how many of the six parts mean the same.

    Args:
        n: Number of pairs.
        seed: The same seed gives the same pairs.

    Returns:
        Columns sentence1, sentence2, score (0 to 5, five sixths for each shared part) and shared
        (the shared parts).
    """
    rng = random.Random(seed)
    rows = []
    for index in range(n):
        scene, wording = _scene(rng, ALL_MEANINGS), _wording(rng)
        shared = rng.sample(list(PARTS), k=index % (len(PARTS) + 1))
        other = _change(rng, scene, [part for part in PARTS if part not in shared], ALL_MEANINGS)
        rows.append(
            {
                "sentence1": _say(rng, scene, wording, TEST_PATTERNS),
                "sentence2": _say(rng, other, _other(rng, wording), TEST_PATTERNS),
                "score": 5 * len(shared) / len(PARTS),
                "shared": shared,
            }
        )
    return Dataset.from_list(rows)


class DemoSTS(AbsTaskSTS):
    """The scored pairs as an mteb task: similarities should rank pairs by the meanings they share."""

    metadata = TaskMetadata(
        name="DemoSTS",
        description="Generated sentence pairs, scored by the number of meanings they share.",
        dataset={"path": "st_matryoshka2d/demo", "revision": "1"},
        type="STS",
        category="t2t",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
    )

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Generate the pairs; called by mteb."""
        self.dataset = DatasetDict({"test": scored_pairs()})
        self.data_loaded = True


def demo_task(n: int = 1000) -> AbsTask:
    """Return the first n test pairs as a loaded task."""
    task = DemoSTS()
    task.load_data()
    task.dataset = DatasetDict({"test": scored_pairs(n)})
    return task


def demo_search(n: int = 300) -> AbsTask:
    """Return a search task with n queries; each has one document of the same meaning and one near copy of another."""
    rows = triplets(n, seed=3)
    corpus = list(dict.fromkeys([*rows["positive"], *rows["negative"]]))
    relevant = {query: [str(corpus.index(text))] for query, text in enumerate(rows["positive"])}
    return retrieval_task(dict(enumerate(corpus)), dict(enumerate(rows["anchor"])), relevant, name="DemoSearch")


def _scene(rng: random.Random, meanings: dict[str, int]) -> Scene:
    return {part: rng.randrange(count) for part, count in meanings.items()}


def _change(rng: random.Random, scene: Scene, parts: Sequence[str], meanings: dict[str, int]) -> Scene:
    """Change the meaning of these parts of a scene; half of the time, negate a changed verb instead."""
    changed = {part: (scene[part] + rng.randrange(1, meanings[part])) % meanings[part] for part in parts}
    if "did" in changed and rng.random() < 0.5:
        changed["did"] = scene["did"] ^ 1
    return {**scene, **changed}


def _wording(rng: random.Random) -> dict[str, int]:
    return {part: rng.randrange(3) for part in PARTS}


def _other(rng: random.Random, wording: dict[str, int]) -> dict[str, int]:
    return {part: (index + rng.randrange(1, 3)) % 3 for part, index in wording.items()}


def _say(rng: random.Random, scene: Scene, wording: dict[str, int], patterns: Sequence[str]) -> str:
    words = {part: PARTS[part][meaning][wording[part]] for part, meaning in scene.items()}
    sentence = rng.choice(patterns).format(**words)
    return f"{sentence[0].upper()}{sentence[1:]}."
