"""Sentence-embedding models that can be cut in depth and in width: train, cut, score, ship."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from st_matryoshka2d.alignment import align as align
    from st_matryoshka2d.batch_encoder import SizesEncoder as SizesEncoder
    from st_matryoshka2d.cut import truncate as truncate
    from st_matryoshka2d.elastic import TruncatedTransformer as TruncatedTransformer
    from st_matryoshka2d.encode import encode_sizes as encode_sizes
    from st_matryoshka2d.evaluation.choose import Recommendation as Recommendation
    from st_matryoshka2d.evaluation.compare import GridComparison as GridComparison
    from st_matryoshka2d.evaluation.custom_tasks import classification_task as classification_task
    from st_matryoshka2d.evaluation.custom_tasks import retrieval_task as retrieval_task
    from st_matryoshka2d.evaluation.custom_tasks import sts_task as sts_task
    from st_matryoshka2d.evaluation.evaluate import evaluate as evaluate
    from st_matryoshka2d.evaluation.evaluate import evaluate_truncations as evaluate_truncations
    from st_matryoshka2d.evaluation.evaluator import GridEvaluator as GridEvaluator
    from st_matryoshka2d.evaluation.funnel import evaluate_funnel as evaluate_funnel
    from st_matryoshka2d.evaluation.funnel_result import FunnelResult as FunnelResult
    from st_matryoshka2d.evaluation.grid import GridResult as GridResult
    from st_matryoshka2d.evaluation.truncation import TruncationResult as TruncationResult
    from st_matryoshka2d.latency import benchmark_latency as benchmark_latency
    from st_matryoshka2d.loading import load as load
    from st_matryoshka2d.model_card.grid import add_grid_to_model_card as add_grid_to_model_card
    from st_matryoshka2d.model_card.sizes import add_sizes_to_model_card as add_sizes_to_model_card
    from st_matryoshka2d.parquet import encode_to_parquet as encode_to_parquet
    from st_matryoshka2d.plots.speedup import plot_speedup as plot_speedup
    from st_matryoshka2d.sizes import Size as Size
    from st_matryoshka2d.sizes import sizes_ladder as sizes_ladder
    from st_matryoshka2d.spread import CoordinateSpread as CoordinateSpread
    from st_matryoshka2d.spread import coordinate_spread as coordinate_spread

__version__ = "0.1.0"

# Resolved on first use (PEP 562): importing the package imports neither torch nor mteb nor matplotlib.
_HOME = {
    "CoordinateSpread": "spread",
    "FunnelResult": "evaluation.funnel_result",
    "GridComparison": "evaluation.compare",
    "GridEvaluator": "evaluation.evaluator",
    "GridResult": "evaluation.grid",
    "Recommendation": "evaluation.choose",
    "Size": "sizes",
    "SizesEncoder": "batch_encoder",
    "TruncationResult": "evaluation.truncation",
    "TruncatedTransformer": "elastic",
    "add_grid_to_model_card": "model_card.grid",
    "add_sizes_to_model_card": "model_card.sizes",
    "align": "alignment",
    "benchmark_latency": "latency",
    "classification_task": "evaluation.custom_tasks",
    "coordinate_spread": "spread",
    "encode_sizes": "encode",
    "encode_to_parquet": "parquet",
    "evaluate": "evaluation.evaluate",
    "evaluate_funnel": "evaluation.funnel",
    "evaluate_truncations": "evaluation.evaluate",
    "load": "loading",
    "plot_speedup": "plots.speedup",
    "retrieval_task": "evaluation.custom_tasks",
    "sizes_ladder": "sizes",
    "sts_task": "evaluation.custom_tasks",
    "truncate": "cut",
}

__all__ = [
    "CoordinateSpread",
    "FunnelResult",
    "GridComparison",
    "GridEvaluator",
    "GridResult",
    "Recommendation",
    "Size",
    "SizesEncoder",
    "TruncatedTransformer",
    "TruncationResult",
    "add_grid_to_model_card",
    "add_sizes_to_model_card",
    "align",
    "benchmark_latency",
    "classification_task",
    "coordinate_spread",
    "encode_sizes",
    "encode_to_parquet",
    "evaluate",
    "evaluate_funnel",
    "evaluate_truncations",
    "load",
    "plot_speedup",
    "retrieval_task",
    "sizes_ladder",
    "sts_task",
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
