"""The package's warning about data."""

from __future__ import annotations


class DataWarning(UserWarning):
    """The data do not carry what was asked of them, such as a proposal from twelve examples. The message has the remedy.

    Its own class, so that it can be filtered, or made an error where nobody reads a log.

    Example:
        >>> import warnings
        >>> from st_matryoshka2d import DataWarning
        >>> warnings.filterwarnings("error", category=DataWarning)  # stop instead
        >>> warnings.filterwarnings("ignore", category=DataWarning)  # say nothing
    """
