"""Bars that show what is running and how far it is, also where nobody watches a terminal."""

from __future__ import annotations

import sys
from typing import Any

from tqdm.auto import tqdm
from tqdm.autonotebook import tqdm as bar_here

_SELDOM = 30  # seconds between lines in a log; what takes less is silent there


def progress(what: str, total: int | None, unit: str, hidden: bool | None) -> tqdm[Any]:
    """Start a bar. If nobody decided (None), it is drawn on a terminal or in a notebook, and seldom elsewhere."""
    rate: dict[str, Any] = {}
    if hidden is None and bar_here.__name__ != "tqdm_notebook" and not sys.stderr.isatty():
        rate = {"delay": _SELDOM, "mininterval": _SELDOM, "maxinterval": _SELDOM}
    return tqdm(total=total, desc=what, unit=f" {unit}", disable=bool(hidden), **rate)
