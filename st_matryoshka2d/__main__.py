"""`python -m st_matryoshka2d` is the command line."""

from __future__ import annotations

from st_matryoshka2d.errors import naming_the_extra

try:
    with naming_the_extra("The command line"):
        from st_matryoshka2d.cli.app import app
except ImportError as error:
    raise SystemExit(f"Error: {error}") from None

if __name__ == "__main__":
    app(prog_name="python -m st_matryoshka2d")
