"""The papers, and one recipe of our own: each is a choice of sizes and terms around the wrapped loss."""

from __future__ import annotations
