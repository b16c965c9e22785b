"""Many texts, in the eyes of the package."""

from __future__ import annotations

import pytest

from st_matryoshka2d.aligning import own_space, ridge, sample


@pytest.fixture
def more_than_20_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of many texts a part suffices to choose strengths, so that the others can be used to refine."""
    for module in (own_space, sample, ridge):
        monkeypatch.setattr(module, "MANY", 20)
