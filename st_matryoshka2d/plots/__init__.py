"""Figures; the only folder that imports matplotlib."""

from __future__ import annotations

from st_matryoshka2d.errors import naming_the_extra

with naming_the_extra("A figure"):
    import matplotlib  # noqa: F401  # before any module of this folder, each of which needs it
