"""Files are readable by everyone whom the umask allows, whatever wrote them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn

from st_matryoshka2d.evaluation.embedding_cache import Memo
from st_matryoshka2d.files.atomic import replace_file, share_weights
from st_matryoshka2d.model.readout_files import StoredReadouts, write_readouts
from st_matryoshka2d.model.table import Table
from tests.support import families

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has no umask")


@pytest.fixture(params=[0o022, 0o077])
def mode(request: pytest.FixtureRequest) -> Iterator[int]:
    """The mode of a new file under a umask."""
    before = os.umask(request.param)
    yield 0o666 & ~request.param
    os.umask(before)


def by_renaming(part: Path) -> None:
    """Write like a library that puts a file of `tempfile` in place."""
    number, name = tempfile.mkstemp(dir=part.parent)
    os.close(number)
    Path(name).replace(part)


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda part: part.write_text("a text"),
    "safetensors": lambda part: save_file({"a": np.zeros(3)}, part),
    "tempfile": by_renaming,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_has_the_mode_of_the_umask(writer: str, mode: int, tmp_path: Path) -> None:
    for _ in range(2):  # the second time, it replaces a file
        replace_file(tmp_path / "file", WRITERS[writer])
        assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_so_have_weights_that_a_library_saved(mode: int, tmp_path: Path) -> None:
    (tmp_path / "1_Dense").mkdir()
    files = [tmp_path / "model.safetensors", tmp_path / "1_Dense" / "model.safetensors"]
    for file in files:
        save_file({"a": np.zeros(3)}, file)
    share_weights(tmp_path)
    assert [path.stat().st_mode & 0o777 for path in files] == [mode, mode]
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(files)


def test_so_have_readouts_tables_and_cached_embeddings(mode: int, tmp_path: Path) -> None:
    write_readouts(tmp_path, nn.Linear(3, 3), StoredReadouts(2, {1: nn.Linear(3, 3)}, None))
    Table.of(StaticEmbedding(families.tokenizer(), embedding_dim=3), {}).save(str(tmp_path))
    Memo(tmp_path / "texts").add(["a text"], torch.zeros(1, 3).numpy())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}
