"""Sentence-embedding models that can be cut in depth and in width: train, cut, score, ship."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from st_matryoshka2d.elastic import TruncatedTransformer as TruncatedTransformer
    from st_matryoshka2d.encode import encode_sizes as encode_sizes
    from st_matryoshka2d.evaluation.evaluate import evaluate as evaluate
    from st_matryoshka2d.evaluation.result import GridResult as GridResult
    from st_matryoshka2d.latency import benchmark_latency as benchmark_latency
    from st_matryoshka2d.sizes import Size as Size
    from st_matryoshka2d.sizes import sizes_ladder as sizes_ladder
    from st_matryoshka2d.submodel import load as load
    from st_matryoshka2d.submodel import truncate as truncate

__version__ = "0.1.0"

# Resolved on first use (PEP 562): importing the package imports neither torch nor mteb nor matplotlib.
_HOME = {
    "GridResult": "evaluation.result",
    "Size": "sizes",
    "TruncatedTransformer": "elastic",
    "benchmark_latency": "latency",
    "encode_sizes": "encode",
    "evaluate": "evaluation.evaluate",
    "load": "submodel",
    "sizes_ladder": "sizes",
    "truncate": "submodel",
}

__all__ = [
    "GridResult",
    "Size",
    "TruncatedTransformer",
    "benchmark_latency",
    "encode_sizes",
    "evaluate",
    "load",
    "sizes_ladder",
    "truncate",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
