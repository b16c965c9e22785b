"""Reports: grids as one page that opens offline; the only folder that imports Jinja."""

from __future__ import annotations

from st_matryoshka2d.errors import naming_the_extra

with naming_the_extra("A report"):
    import jinja2  # noqa: F401  # before any module of this folder
