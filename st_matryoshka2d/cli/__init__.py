"""The command line: `st-matryoshka2d`, or `python -m st_matryoshka2d`. One file for each command.

Nothing heavy is imported before a command runs, so that `--help` and shell completion answer at once.
"""

from __future__ import annotations

from st_matryoshka2d.extras import naming_the_extra

with naming_the_extra("The command line"):
    import rich  # noqa: F401  # before any module of this folder, which need both
    import typer  # noqa: F401
