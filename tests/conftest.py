"""A Hub and a process that loads from it, for the tests of what comes from the Hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loader_support import Loader
from tests.pieces_support import Hub, serving


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(tmp_path_factory.mktemp("hub")) as served:
        yield served


@pytest.fixture(scope="module")
def loader(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    process = Loader(hub.url, tmp_path_factory.mktemp("home"))
    yield process
    process.close()
