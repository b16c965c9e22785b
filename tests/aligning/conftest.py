"""Many texts, in the eyes of the package."""

from __future__ import annotations

import pytest

from st_matryoshka2d.aligning import own_space as fit
from st_matryoshka2d.aligning import ridge
from st_matryoshka2d.aligning import sample as gather


@pytest.fixture
def more_than_20_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of many texts a part suffices to choose strengths, so that the others can be used to refine."""
    for module in (fit, gather, ridge):
        monkeypatch.setattr(module, "MANY", 20)
