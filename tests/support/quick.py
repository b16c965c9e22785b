"""Which of many cases `make test` runs; the others, which show the same of other values, wait for `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All of the cases for `parametrize`; but for the chosen ones they are marked as slow."""
    cases = list(cases)
    assert all(case in cases for case in chosen), f"{chosen} is not within {cases}"
    return [case if case in chosen else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
