"""Select the cases that `make test` runs; `make test-all` runs the others, which repeat the check with other values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return all cases for `parametrize`, marked as slow except the chosen ones."""
    cases = list(cases)
    assert all(case in cases for case in chosen), f"{chosen} is not within {cases}"
    return [case if case in chosen else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
