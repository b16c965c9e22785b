"""Bad servers, invalid checkpoints and pickled weights: clear errors, and nothing is cached."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import truncate
from tests.support import families
from tests.support.broken_files import BROKEN, broken_files
from tests.support.broken_shards import SHARDED, broken_checkpoints
from tests.support.hub import MISBEHAVING, Handler, Hub, broken_off, configure, pieces_in
from tests.support.loader import Loader

commits = (f"{number:040x}" for number in count(1))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[float]]]:
    """Return a saved pipeline with a Dense module, and embeddings of its first two layers."""
    folder = tmp_path_factory.mktemp("pristine")
    families.pipeline(families.CONFIGS["bert"](), folder / "weights").save_pretrained(str(folder / "model"))
    model = truncate(SentenceTransformer(str(folder / "model"), device="cpu"), num_layers=2)
    return folder / "model", model.encode(["the cat sat on the mat", "a dog"]).tolist()


@pytest.fixture
def expected(pristine: tuple[Path, list[list[float]]]) -> list[list[float]]:
    return pristine[1]


@pytest.fixture
def folder(hub: Hub, pristine: tuple[Path, list[list[float]]]) -> Path:
    """Return the folder of the repository `org/bert`, at a new commit."""
    folder = hub.root / "org" / "bert"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pristine[0], folder)
    hub.reset(commit=next(commits))
    return folder


def refused(hub: Hub, loader: Loader, error: str = "ValueError", **kwargs: Any) -> str:
    """Return the error message of loading; check that no piece of the commit is cached."""
    answer = loader.load("org/bert", num_layers=2, **kwargs)
    assert error in answer.get("error", ()), answer
    assert not [path for path in pieces_in(loader.home) if hub.commit in path]
    return str(answer["words"])


@pytest.mark.parametrize("status", [200, 416, 501])
def test_without_ranges_downloads_whole_file_and_warns(
    status: int, folder: Path, expected: list[list[float]], hub: Hub, loader: Loader
) -> None:
    hub.manners = lambda handler, content, start, stop: handler.answer(status, content if status == 200 else b"")
    loaded = loader.load("org/bert", num_layers=2)
    assert loaded["embedding"] == expected
    assert len(loaded["warnings"]) == 1
    assert (
        f"whole weights are downloaded. The server does not support range requests for model.safetensors (status {status})"
        in (loaded["warnings"][0])
    )
    hub.reset(commit=hub.commit)
    assert loader.load("org/bert", num_layers=2) == {**loaded, "warnings": []}
    assert "model.safetensors" not in hub.sent


# after the header; others are seen by the same check
OFTEN_LATE = {"fewer bytes than named", "broken off", "broken itself"}


# Silent servers are retried several times.
@pytest.mark.parametrize(
    ("name", "late"),
    [
        pytest.param(name, late, marks=[pytest.mark.slow] if name == "silent" or (late and name not in OFTEN_LATE) else [])
        for name in MISBEHAVING
        for late in (False, True)
    ],
)
def test_servers_that_misbehave(name: str, late: bool, folder: Path, hub: Hub, loader: Loader) -> None:
    manners, error, words = MISBEHAVING[name]
    begin = 8 + int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")

    def on_time(handler: Handler, content: bytes, start: int, stop: int) -> None:
        (manners if (start >= begin) is late else handler.__class__.part)(handler, content, start, stop)

    hub.manners = on_time
    assert words in refused(hub, loader, error)


def test_resumes_broken_connection(folder: Path, expected: list[list[float]], hub: Hub, loader: Loader) -> None:
    broken: list[int] = []

    def once(handler: Handler, content: bytes, start: int, stop: int) -> None:
        if not broken and start > 8:
            broken.append((start + stop) // 2)
            return broken_off(handler, content, start, stop)
        return handler.part(content, start, stop)

    hub.manners = once
    assert loader.load("org/bert", num_layers=2)["embedding"] == expected
    assert any(asked and asked.startswith(f"bytes={broken[0]}-") for _, asked in hub.asked)


def huge_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    with (folder / "model.safetensors.index.json").open("wb") as file:
        file.truncate(100_000_001)


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a later module": (lambda folder: cut_off(folder / "2_Dense" / "model.safetensors"), "2_Dense/model.safetensors"),
    "weights of a server without ranges": (lambda folder: cut_off(folder / "model.safetensors"), "ends at byte"),
    "no weights": (lambda folder: (folder / "model.safetensors").rename(folder / "tf_model.h5"), "found ['tf_model.h5']"),
    "a huge index": (huge_index, "has 100000001 bytes; no more than 100000000"),
}


@pytest.mark.parametrize("size", [{"num_layers": 2}, {"dim": 8}])
def test_refuses_depth_that_contradicts_weights(size: dict[str, int], folder: Path, hub: Hub, loader: Loader) -> None:
    configure(folder, num_hidden_layers=10**9)
    assert "the model has 1000000000 layers" in loader.load("org/bert", **size)["words"]


@pytest.mark.parametrize("what", SPOILED)
def test_what_is_spoiled_is_refused_by_name(what: str, folder: Path, hub: Hub, loader: Loader) -> None:
    spoil, told = SPOILED[what]
    spoil(folder)
    if what == "weights of a server without ranges":
        hub.manners = lambda handler, content, start, stop: handler.answer(200, content)
    assert told in refused(hub, loader)
    assert "model.safetensors.index.json" not in hub.sent


# Data read over HTTP passes the same checks as files, which have more tests.
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("sharded", [False, True])
def test_every_kind_of_broken_file_is_refused_over_http(
    sharded: bool, step: int, folder: Path, hub: Hub, loader: Loader
) -> None:
    whole = [(kind, {"model.safetensors": file}) for kind, file in broken_files(len(BROKEN), seed=5)]
    for kind, files in (broken_checkpoints(len(SHARDED), seed=6) if sharded else whole)[::step]:
        for path in folder.glob("model*"):
            path.unlink()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        hub.reset(commit=next(commits))
        assert "safetensors" in refused(hub, loader), kind


def test_a_list_of_files_that_leads_out_of_the_repository(folder: Path, hub: Hub, loader: Loader) -> None:
    hub.reset(commit=hub.commit, also_listed=("1_Pooling/../../evil.json",))
    assert "'1_Pooling/../../evil.json', which is not inside the repository" in refused(hub, loader)


# Found before the download, or, for weights outside the blocks, after it.
@pytest.mark.parametrize("name", ["encoder.layer.0.attention.self.query.weight", "embeddings.LayerNorm.weight"])
def test_refuses_missing_weight_in_cached_piece(name: str, folder: Path, hub: Hub, loader: Loader) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({"other": tensors.pop(name), **tensors}, folder / "model.safetensors", {"format": "pt"})
    for size in ({"num_layers": 2}, {"num_layers": 2, "dim": 8}, {"dim": 8}):
        answer = loader.load("org/bert", **size)
        assert "ValueError" in answer["error"]
        assert name in answer["words"]
        assert "model.safetensors" in answer["words"] or "org/bert" in answer["words"]


def test_weights_that_a_cut_does_not_need_may_be_missing(folder: Path, expected: list[list[float]], loader: Loader) -> None:
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "pooler" not in name and "2.output.dense" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert loader.load("org/bert", num_layers=2)["embedding"] == expected


def test_names_damaged_piece_in_cache(folder: Path, hub: Hub, loader: Loader) -> None:
    assert loader.load("org/bert", num_layers=2)["layers"] == 2
    [piece] = loader.home.glob(f"**/{hub.commit}/2-layers-1-4/model.safetensors")
    piece.write_bytes(piece.read_bytes()[:-1])
    answer = loader.load("org/bert", num_layers=2)
    assert "ValueError" in answer["error"]
    assert str(piece) in answer["words"]


class Evil:
    """Leaves a trace when unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("where", ["", "2_Dense/"])
def test_reads_pickles_only_on_request(
    where: str, folder: Path, expected: list[list[float]], hub: Hub, loader: Loader, tmp_path: Path
) -> None:
    torch.save(load_file(folder / f"{where}model.safetensors"), folder / f"{where}pytorch_model.bin")
    (folder / f"{where}model.safetensors").unlink()
    words = refused(hub, loader)
    assert f"found ['{where}pytorch_model.bin']" in words
    assert "allow_bin=True" in words
    assert "pytorch_model.bin" not in hub.sent
    assert np.allclose(loader.load("org/bert", num_layers=2, allow_bin=True)["embedding"], expected, atol=1e-6)
    assert "allow_bin=True" in str(loader.load("org/bert", num_layers=2)["words"])  # also if cached

    torch.save({"weight": Evil(tmp_path / "trace")}, folder / f"{where}pytorch_model.bin")
    hub.reset(commit=next(commits))
    assert "holds more than tensors" in loader.load("org/bert", num_layers=2, allow_bin=True)["words"]
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("place", ["modules.json", "config.json"])
def test_does_not_run_repository_code(place: str, folder: Path, hub: Hub, loader: Loader, tmp_path: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    content = json.loads((folder / place).read_text())
    if place == "modules.json":
        content[1]["type"] = "evil.Evil"
    else:
        content |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}
    (folder / place).write_text(json.dumps(content))
    answer = loader.load("org/bert", num_layers=2)
    assert "trust_remote_code" in answer["words"]
    assert not (tmp_path / "trace").exists()
    assert not list(loader.home.rglob("evil.py"))


@pytest.mark.parametrize(
    ("name", "kwargs", "error"),
    [
        ("org/nowhere", {}, "RepositoryNotFoundError"),
        ("org/bert", {"revision": "nowhere"}, "RevisionNotFoundError"),
        ("org/gated", {}, "GatedRepoError"),
        ("org/nowhere", {"local_files_only": True}, "RevisionResolutionError"),
        ("not a name/at all", {}, "HFValidationError"),
    ],
)
def test_passes_hub_errors_through(
    name: str, kwargs: dict[str, Any], error: str, folder: Path, hub: Hub, loader: Loader
) -> None:
    assert error in loader.load(name, num_layers=2, **kwargs)["error"]
