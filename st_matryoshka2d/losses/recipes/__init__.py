"""Recipes of the papers, and one of our own: each chooses sizes and terms for a wrapped loss."""

from __future__ import annotations
