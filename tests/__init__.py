"""Tests of the package, in folders as the package has them; what they share is in `support`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
