"""A corpus in Parquet shards: a killed run resumes, encodes nothing twice, and ends with the same bytes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value, load_dataset
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, encode_sizes, encode_to_parquet
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from tests.support.families import WORDS

SIZES = ["1L-8d", "4L-32d"]
LINES = [f"{WORDS[row % 22]} {WORDS[row * 7 % 19]} {WORDS[row * 5 % 17]}" for row in range(23)]


class Killed(BaseException):
    """Not an `Exception`, so that no handler cleans up."""


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the texts that a model embeds, without the encoder's self-test."""
    texts: list[str] = []
    encode = EveryLayer.encode

    def counted(self: EveryLayer, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        texts.extend(text for text in inputs if text != "a")
        return encode(self, inputs, *args, **kwargs)

    monkeypatch.setattr(EveryLayer, "encode", counted)
    return texts


def write(model: Any, texts: Any, folder: Path, **changed: Any) -> list[Path]:
    arguments = {"sizes": SIZES, "shard_size": np.int64(5), "show_progress_bar": False, **changed}
    return encode_to_parquet(model, texts, folder, **arguments)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_match_encode_sizes(tiny: SentenceTransformer, tmp_path: Path) -> None:
    files = write(tiny, LINES, tmp_path)
    assert [path.name for path in files] == [f"shard-{number:06d}.parquet" for number in range(5)]
    frame = pd.read_parquet(tmp_path)
    assert frame["text"].tolist() == LINES
    for size, wanted in encode_sizes(tiny, LINES, SIZES).items():
        np.testing.assert_allclose(np.stack(list(frame[str(size)])), wanted, atol=1e-6)


@pytest.mark.parametrize("streamed", [False, True])
def test_dataset_keeps_its_columns(streamed: bool, tiny: SentenceTransformer, tmp_path: Path) -> None:
    features = Features({"label": ClassLabel(names=["no", "yes"]), "line": Value("string"), "score": Value("float32")})
    rows = {"label": [row % 2 for row in range(23)], "line": LINES, "score": [float("nan"), None, *[1.0] * 21]}
    data = Dataset.from_dict(rows, features=features)
    for _ in range(2):  # the second run reuses all shards, including NaN and missing values
        write(tiny, data.to_iterable_dataset() if streamed else data, tmp_path / "out", text="line", columns=["s", "w"])
    read = load_dataset("parquet", data_dir=str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert list(read.features) == ["label", "line", "score", "s", "w"]
    assert read.features["label"].names == ["no", "yes"]
    assert list(read["line"]) == LINES
    np.testing.assert_allclose(read["s"], encode_sizes(tiny, LINES, SIZES)[Size(1, 8)], atol=1e-6)


@pytest.mark.parametrize("given", [list, iter], ids=["list", "generator"])
def test_resumed_run_writes_same_bytes(
    given: Any, tiny: SentenceTransformer, tmp_path: Path, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tiny, given(LINES), tmp_path / "whole")
    encoded.clear()
    with monkeypatch.context() as patched:
        split = EveryLayer.split

        def failing(self: EveryLayer, *args: Any) -> Any:
            if len(encoded) > 10:
                raise Killed
            return split(self, *args)

        patched.setattr(EveryLayer, "split", failing)
        with pytest.raises(Killed):
            write(tiny, given(LINES), tmp_path / "killed")
    assert len(contents(tmp_path / "killed")) == 2
    (tmp_path / "killed" / ".0123.part.parquet").write_bytes(b"half of a shard")
    encoded.clear()
    write(tiny, given(LINES), tmp_path / "killed")
    assert encoded == LINES[10:]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    encoded.clear()
    write(tiny, given(LINES), tmp_path / "killed", batch_size=3)
    assert not encoded
    (tmp_path / "killed" / "shard-000001.parquet").unlink()
    write(tiny, given(LINES), tmp_path / "killed")
    assert encoded == LINES[5:10]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_texts_are_read_shard_by_shard(tiny: SentenceTransformer, tmp_path: Path) -> None:
    ahead: list[int] = []

    def lines() -> Iterator[str]:
        for row, line in enumerate(LINES):
            ahead.append(row - 5 * len(list(tmp_path.glob("shard-*"))))
            yield line

    write(tiny, lines(), tmp_path)
    assert max(ahead) < 5


def trained(model: SentenceTransformer) -> None:
    next(model.parameters()).data += 1


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "sizes": ({"sizes": ["1L-8d", "4L-16d"]}, r"other sizes: \['1L-8d', '4L-32d'\] there, \['1L-8d', '4L-16d'\] now"),
    "columns": ({"columns": ["a", "b"]}, "other columns"),
    "shard size": ({"shard_size": 6}, "other shard size: 5 there, 6 now"),
    "unit length": ({"normalize_embeddings": True}, "other normalized: False there, True now"),
    "prompt": ({"prompt": "query: "}, "other keywords"),
    "texts": ({"texts": ["new", *LINES[1:]]}, r"was written with other texts\. Call with the same arguments"),
    "more texts": ({"texts": [*LINES, "new"]}, "was written with other texts"),
    "fewer texts": ({"texts": LINES[:10]}, r"texts end before .*shard-000002.parquet: it belongs to a run with more texts"),
    "model": ({}, "other model: .* there, .* now.*Call with the same arguments.*not trained since"),
}


@pytest.mark.parametrize("what", OTHER)
def test_refuses_the_folder_of_another_run(what: str, tiny: SentenceTransformer, tmp_path: Path, encoded: list[str]) -> None:
    write(tiny, LINES, tmp_path)
    before = contents(tmp_path)
    encoded.clear()
    changed, told = OTHER[what]
    if what == "model":
        trained(tiny)
    with pytest.raises(ValueError, match=told):
        write(tiny, **{"texts": LINES, "folder": tmp_path, **changed})
    assert not encoded
    assert contents(tmp_path) == before


def test_refuses_to_mix_weights_of_a_model_that_is_trained_meanwhile(tiny: SentenceTransformer, tmp_path: Path) -> None:
    def lines() -> Iterator[str]:
        yield from LINES[:5]
        trained(tiny)
        yield from LINES[5:]

    with pytest.raises(ValueError, match=r"trained or changed during the run.*(.|\n)*shard starts at row 5"):
        write(tiny, lines(), tmp_path)
    assert len(contents(tmp_path)) == 1


def test_a_folder_of_the_same_model_continues_its_run(tiny: SentenceTransformer, tmp_path: Path, encoded: list[str]) -> None:
    write(tiny, LINES, tmp_path / "out")
    tiny.save_pretrained(str(tmp_path / "saved"))
    encoded.clear()
    write(str(tmp_path / "saved"), LINES, tmp_path / "out")
    assert not encoded


def test_refuses_folder_with_other_files(tiny: SentenceTransformer, tmp_path: Path) -> None:
    pd.DataFrame({"text": LINES}).to_parquet(tmp_path / "mine.parquet")
    with pytest.raises(ValueError, match=r"mine.parquet was not written by encode_to_parquet. Choose an empty folder"):
        write(tiny, LINES, tmp_path)
    (tmp_path / "mine.parquet").write_bytes(b"not Parquet")
    with pytest.raises(OSError, match=r"mine.parquet cannot be read: .* Delete it to have it written again"):
        write(tiny, LINES, tmp_path)
    with pytest.raises(FileExistsError, match=r"mine\.parquet"):
        write(tiny, LINES, tmp_path / "mine.parquet")


@pytest.mark.slow
def test_sigkill_keeps_finished_shards(tiny: SentenceTransformer, tmp_path: Path, encoded: list[str]) -> None:
    tiny.save_pretrained(str(tmp_path / "tiny"))
    lines = LINES * 60
    script = (
        "import sys; from st_matryoshka2d import encode_to_parquet\n"
        "model, folder, *lines = sys.stdin.read().splitlines()\n"
        f"encode_to_parquet(model, lines, folder, {SIZES}, shard_size=50, device='cpu')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdin is not None
    process.stdin.write("\n".join([str(tmp_path / "tiny"), str(tmp_path / "killed"), *lines]))
    process.stdin.close()
    while len(list((tmp_path / "killed").glob("shard-*"))) < 3:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    survived = len(list((tmp_path / "killed").glob("shard-*")))
    assert 3 <= survived < len(lines) / 50
    assert all(pq.read_table(path).num_rows == 50 for path in (tmp_path / "killed").glob("shard-*"))
    write(str(tmp_path / "tiny"), lines, tmp_path / "killed", shard_size=50, device="cpu")
    assert encoded == lines[50 * survived :]
    write(str(tmp_path / "tiny"), lines, tmp_path / "whole", shard_size=50, device="cpu")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
