"""Leave out log records of hosts that would repeat or contradict ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident


@contextmanager
def filtered(name: str, is_wanted: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Filter what this thread logs, within this context, with the loggers of a module and of those within it."""
    thread = get_ident()

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != thread or is_wanted(record)

    known = [other for other in list(logging.root.manager.loggerDict) if other == name or other.startswith(f"{name}.")]
    with ExitStack() as filters:
        for logger in map(logging.getLogger, known):
            logger.addFilter(passes)
            filters.callback(logger.removeFilter, passes)
        yield
