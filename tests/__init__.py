"""Tests of the package, in the same folders as the package; shared code is in `support`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
