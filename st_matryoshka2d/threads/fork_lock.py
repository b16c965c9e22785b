"""Locks between threads that are open again in a forked process."""

from __future__ import annotations

import os
from threading import RLock


class ForkLock:
    """Return the lock of this process: `with lock(): ...`.

    A server may fork while another of its threads holds a lock. That thread does not exist in the new process, where
    nobody would ever release it.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._renew)

    def __call__(self) -> RLock:  # noqa: D102
        return self._lock

    def _renew(self) -> None:
        self._lock = RLock()
