"""A local Hub and its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hub import Hub, serving
from tests.support.loader import Loader


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(tmp_path_factory.mktemp("hub")) as served:
        yield served


@pytest.fixture(scope="module")
def loader(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Loader:
    return Loader(hub.url, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def offline(hub: Hub, loader: Loader) -> Loader:
    """A loader with the same cache and no network."""
    return Loader(hub.url, loader.home, offline=True)
