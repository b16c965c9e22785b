"""A process in which st_matryoshka2d cannot be imported."""

from __future__ import annotations

import sys

from tests.hub_support import plainly_loaded
from tests.loader_support import answer_jobs

if __name__ == "__main__":
    sys.modules["st_matryoshka2d"] = None  # type: ignore[assignment]
    import sentence_transformers  # noqa: F401  # what takes long, while others start

    answer_jobs(load=plainly_loaded)
