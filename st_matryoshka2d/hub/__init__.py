"""Checkpoints, on the Hub or in a folder: what files they have, and only those of their bytes that a cut needs."""

from __future__ import annotations
