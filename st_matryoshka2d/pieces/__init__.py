"""Pieces of checkpoints: from the Hub comes only what a cut of n layers needs, and it is kept for the next time."""

from __future__ import annotations
