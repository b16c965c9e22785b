"""What the package tells its users: mistakes, warnings about their data, missing extras."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Libraries that only some rooms need, and the extra of the package that brings each.
EXTRAS = {
    "accelerate": "train",
    **dict.fromkeys(("datasets", "joblib", "mteb", "pandas", "pytrec_eval", "sklearn"), "eval"),
    "matplotlib": "plot",
    "jinja2": "report",
    "typer": "cli",
    **dict.fromkeys(("onnx", "onnx_ir", "onnxruntime", "onnxscript"), "onnx"),
}

_ON_PYPI = {"sklearn": "scikit-learn", "pytrec_eval": "pytrec-eval-terrier"}  # where the name is another


class UsageError(ValueError):
    """A user's mistake: what was found, what was expected, what to do.

    Its own class, so that a program can tell it from a fault: the command line shows one line for
    it, and a traceback for everything else.

    Example:
        >>> from st_matryoshka2d import Size
        >>> try:
        ...     Size.parse("six layers")
        ... except UsageError as error:
        ...     print(isinstance(error, ValueError), str(error)[:29])
        True A size must look like '6L-128
    """


class UsageTypeError(UsageError, TypeError):
    """A user's mistake in the kind of a value; also a `TypeError`."""


class DataWarning(UserWarning):
    """The data do not carry what was asked of them, such as a proposal from twelve examples.

    Its own class, so that it can be filtered, or made an error where nobody reads a log. The
    message has the remedy.

    Example:
        >>> import warnings
        >>> from st_matryoshka2d import DataWarning
        >>> warnings.filterwarnings("error", category=DataWarning)  # stop instead
        >>> warnings.filterwarnings("ignore", category=DataWarning)  # say nothing
    """


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the first line outside of this package, which is the user's."""
    package, level, frame = __name__.partition(".")[0], 1, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


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
            f"{what} needs {library}, which is not installed: pip install {_ON_PYPI.get(library, library)}. The extra "
            f"[{EXTRAS[library]}] of this package brings all that it needs.",
            name=library,
        ) from error
