"""The package's error about what a user gave."""

from __future__ import annotations


class UsageError(ValueError):
    """A user's mistake: what was found, what was expected, what to do.

    Its own class, so that a program can tell it from a fault: the command line shows one line for
    it, and a traceback for everything else.
    """
