"""Embeddings cached in memory and on disk, compared with a dictionary."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from st_matryoshka2d.evaluation.embedding_cache import Memo

ODD = ["", " ", "a", "A", "a ", "\0", "é", "e\u0301", "\ud800", "😀", "a\nb", "x" * 5000]
WIDTH = 6


def embedding(text: str) -> NDArray[np.float32]:
    return np.random.default_rng(list(text.encode("utf-8", "surrogatepass"))).normal(size=WIDTH).astype(np.float32)


def embeddings(texts: list[str]) -> NDArray[np.float32]:
    return np.array([embedding(text) for text in texts], dtype=np.float32).reshape(-1, WIDTH)


def assert_has(memo: Memo, texts: list[str]) -> None:
    generator = random.Random(0)
    asked = generator.choices(texts, k=3 * len(texts))
    for columns in (slice(0, WIDTH), slice(2, 4)):
        found = memo.take(memo.rows(asked), columns)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, embeddings(asked)[:, columns])
    assert memo.missing([*texts, "not there", *texts, "nor this", "not there"]) == ["not there", "nor this"]
    assert memo.width == WIDTH


@pytest.mark.parametrize("on_disk", [False, True])
def test_every_text_gets_its_own_embedding(tmp_path: Path, on_disk: bool) -> None:
    folder = tmp_path / "memo" if on_disk else None
    pool = ODD + [f"text {number}" for number in range(60)]
    random.shuffle(pool)
    memo, known = Memo(folder), list[str]()
    while pool:
        chunk = memo.missing(pool[: random.randint(1, 6)] * 2)
        pool = pool[len(chunk) :]
        memo.add(chunk, embeddings(chunk))
        known += chunk
        if random.random() < 0.5:
            assert_has(memo, known)
        if on_disk and random.random() < 0.3:
            memo = Memo(folder)  # as after a kill
    assert_has(memo, known)
    if on_disk:
        assert len(list((tmp_path / "memo").iterdir())) > 10
        assert_has(Memo(folder), known)


def test_ignores_unfinished_files(tmp_path: Path) -> None:
    Memo(tmp_path).add(["a"], embeddings(["a"]))
    for name in (".tmp12ab", ".0123456789abcdef.part.safetensors"):
        (tmp_path / name).write_bytes(b"\1\2")
    memo = Memo(tmp_path)
    memo.add(["b"], embeddings(["b"]))
    assert_has(Memo(tmp_path), ["a", "b"])


def test_two_runs_at_once_may_write_the_same_text(tmp_path: Path) -> None:
    """Each reads the folder before the other writes, so that the files contain a text twice."""
    Memo(tmp_path).add(["a"], embeddings(["a"]))
    runs = Memo(tmp_path), Memo(tmp_path)
    runs[0].add(["b", "c"], embeddings(["b", "c"]))
    (tmp_path / "000001.safetensors").rename(tmp_path / "000002.safetensors")
    runs[1].add(["c", "e"], embeddings(["c", "e"]))
    after = Memo(tmp_path)
    after.add(["f", "g"], embeddings(["f", "g"]))
    assert_has(after, ["a", "b", "c", "e", "f", "g"])
    assert_has(Memo(tmp_path), ["a", "b", "c", "e", "f", "g"])


def test_an_unknown_text_is_an_error(tmp_path: Path) -> None:
    memo = Memo()
    memo.add(["a"], embeddings(["a"]))
    with pytest.raises(KeyError):
        memo.rows(["a", "b"])


@pytest.mark.parametrize("content", [b"", b"\xff" * 300])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    Memo(tmp_path).add(["a"], embeddings(["a"]))
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} cannot be read. Delete it"):
        Memo(tmp_path)
