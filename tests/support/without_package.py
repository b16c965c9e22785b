"""A process in which st_matryoshka2d cannot be imported."""

from __future__ import annotations

import sys

from tests.support.loader import answer_jobs
from tests.support.uploads import plainly_loaded

if __name__ == "__main__":
    sys.modules["st_matryoshka2d"] = None  # type: ignore[assignment]
    import sentence_transformers  # noqa: F401  # slow to import, so import while other workers start

    answer_jobs(load=plainly_loaded)
