"""Round trip through the Hub: train, push, load a cut, push the cut, load it without this package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.loader import Worker
from tests.support.uploads import OWNER, READER, shipping

# starts processes: Hub clients with tokens, offline, and with retries
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hub(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with shipping(shared, tmp_path_factory.mktemp("hub")) as served:
        yield served


@pytest.fixture(scope="module")
def loader(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    process = Worker(hub.url, tmp_path_factory.mktemp("home"), "tests.support.uploads")
    yield process
    process.close()


@pytest.fixture(scope="module")
def plain(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    process = Worker(hub.url, tmp_path_factory.mktemp("plain"), "tests.support.without_package")
    yield process
    process.close()


@pytest.fixture(scope="module")
def pushed(hub: Any, loader: Worker, plain: Worker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Push `me/model` and `me/model-cut`; return embeddings of the model and of cuts."""
    made: dict[str, Any] = loader.do("train", str(tmp_path_factory.mktemp("trained")), "me/model", OWNER)
    assert "error" not in made, made
    loader.do("train", str(tmp_path_factory.mktemp("private")), "me/private", OWNER)
    return made


def test_a_cut_goes_from_hub_to_hub(pushed: dict[str, Any], hub: Any, loader: Worker, plain: Worker, tmp_path: Path) -> None:
    """Embeddings stay equal, and only the bytes of the cut are sent."""
    hub.sent.clear()
    there = loader.load("me/model", num_layers=2, dim=8, cache_folder=str(tmp_path))
    assert there["embedding"] == pushed["2L-8d"]
    whole = (Path(hub.store.root) / "models" / "me" / "model" / "model.safetensors").stat().st_size
    cut = (Path(hub.store.root) / "models" / "me" / "model-cut" / "model.safetensors").stat().st_size
    assert hub.sent["me/model/model.safetensors"] < cut + 10_000 < whole - 10_000

    given = {"num_layers": 2, "dim": 8, "cache_folder": str(tmp_path)}
    assert loader.do("passed_on", "me/model", "me/small", OWNER, **given)["embedding"] == pushed["2L-8d"]
    for name in ("me/small", "me/model-cut"):
        assert plain.load(name)["embedding"] == pushed["2L-8d"]
        assert loader.load(name, num_layers=1, dim=4)["embedding"] == pushed["1L-4d"]
    assert plain.load("me/model")["embedding"] == pushed["full"]


def test_an_adapter_keeps_the_layers_it_was_trained_for(hub: Any, loader: Worker, plain: Worker, tmp_path: Path) -> None:
    made = loader.do("train", str(tmp_path), "me/adapter", OWNER, adapter=True)
    assert "error" not in made, made
    assert not (Path(hub.store.root) / "models" / "me" / "adapter" / "config.json").exists()
    there = loader.load("me/adapter", num_layers=2, dim=8)["embedding"]
    np.testing.assert_allclose(there, made["2L-8d"], atol=1e-5)
    np.testing.assert_allclose(plain.load("me/adapter")["embedding"], made["full"], atol=1e-5)


def test_private_repositories_need_token(pushed: dict[str, Any], loader: Worker) -> None:
    size = {"num_layers": 2, "dim": 8}
    for token in (False, READER):
        refused = loader.load("me/private", **size, token=token)
        assert "RepositoryNotFoundError" in refused["error"]
        assert "make sure you are authenticated" in refused["words"]
    assert "embedding" in loader.load("me/private", **size, token=OWNER)


@pytest.mark.parametrize(
    "line", ["truncate me/private --size 1L-4d --out no", "info nowhere", "info me/model --revision none"]
)
def test_command_line_reports_hub_errors(line: str, pushed: dict[str, Any], loader: Worker) -> None:
    said = loader.do("shell", *line.split())
    assert (said["code"], said["bug"]) == (1, "SystemExit(1)")
    assert line.split()[1] in said["told"][0]


def test_unreachable_hub_loads_cache_or_fails_fast(pushed: dict[str, Any], hub: Any, loader: Worker, tmp_path: Path) -> None:
    """By default the Hub's client retries for 23 seconds, with sleeps in between."""
    loader.load("me/model", num_layers=2, dim=8)
    full = loader.load("me/model-cut", dim=8)
    hub.stop()
    cached = "The cache has a piece of 2 layers"
    here = loader.load("me/model", num_layers=2, dim=8)
    assert here["embedding"] == pushed["2L-8d"]
    whole = loader.load("me/model-cut", dim=8)
    assert whole["embedding"] == full["embedding"]
    refused = loader.load("me/model", num_layers=3)
    assert "LocalEntryNotFoundError" in refused["error"]
    assert f"cannot be reached ([Errno 111] Connection refused). {cached}" in refused["words"]
    new = loader.load("me/new", num_layers=1)
    assert "RevisionResolutionError" in new["error"]
    assert [answer["naps"] for answer in (here, whole, refused, new)] == [[], [], [], []]
    for command in ("info me/new", f"truncate me/new --size 1L-4d --out {tmp_path}/new"):
        said = loader.do("shell", *command.split())
        assert (said["code"], said["bug"], said["naps"]) == (1, "SystemExit(1)", [])
        assert "'me/new': the Hub could not be reached" in said["told"][0]
    assert cached in loader.do("shell", "info", "me/model")["told"][0]
    there = loader.do("shell", "info", "me/model-cut")
    assert (there["code"], there["naps"]) == (0, [])
