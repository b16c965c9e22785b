"""Libraries that only some rooms need, and the extra of the package that brings each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    **dict.fromkeys(("joblib", "mteb", "pytrec_eval", "sklearn"), "eval"),
    "matplotlib": "plot",
    "jinja2": "report",
    "typer": "cli",
}


@contextmanager
def naming_the_extra(what: str) -> Iterator[None]:
    """Say how to install a library of an extra, if the import of it fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise ImportError(
            f"{what} needs {library}, which is not installed: pip install 'st_matryoshka2d[{EXTRAS[library]}]'.",
            name=library,
        ) from error
