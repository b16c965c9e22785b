"""Read checkpoints from the Hub or a folder: list their files, and download only the bytes that a cut needs."""

from __future__ import annotations
