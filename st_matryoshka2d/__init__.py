"""Cut sentence-embedding models in depth and width: align, train, score and ship any size."""

from __future__ import annotations

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING

from st_matryoshka2d.errors import naming_the_extra

if TYPE_CHECKING:
    from st_matryoshka2d.aligning.align import align
    from st_matryoshka2d.corpora.sizes_encoder import SizesEncoder
    from st_matryoshka2d.corpora.to_parquet import encode_to_parquet
    from st_matryoshka2d.cutting.asymmetric import asymmetric
    from st_matryoshka2d.cutting.truncate import truncate
    from st_matryoshka2d.cutting.truncated_transformer import TruncatedTransformer
    from st_matryoshka2d.encoding.encode_sizes import encode_sizes
    from st_matryoshka2d.errors import DataWarning, UsageError
    from st_matryoshka2d.evaluation.coordinate_spread import CoordinateSpread, coordinate_spread
    from st_matryoshka2d.evaluation.evaluate import evaluate
    from st_matryoshka2d.evaluation.evaluator import GridEvaluator
    from st_matryoshka2d.evaluation.latency import benchmark_latency
    from st_matryoshka2d.evaluation.truncations import evaluate_truncations
    from st_matryoshka2d.exporting.export_onnx import export_onnx
    from st_matryoshka2d.exporting.onnx_embedder import OnnxEmbedder
    from st_matryoshka2d.grid.comparison import GridComparison
    from st_matryoshka2d.grid.grid_result import GridResult
    from st_matryoshka2d.grid.recommend import Recommendation
    from st_matryoshka2d.grid.truncation_result import TruncationResult
    from st_matryoshka2d.healing.heal import heal
    from st_matryoshka2d.hub.load import load
    from st_matryoshka2d.model_card.add import add_to_model_card
    from st_matryoshka2d.own_data.classification import classification_task
    from st_matryoshka2d.own_data.pairs import pair_task, sts_task
    from st_matryoshka2d.own_data.search import retrieval_task
    from st_matryoshka2d.plots.speedup import plot_speedup
    from st_matryoshka2d.queries.fit_queries import fit_queries
    from st_matryoshka2d.queries.token_table import TokenTable
    from st_matryoshka2d.sizes import Size, sizes_ladder

__version__ = "0.3.0"

# Resolved on first use (PEP 562): importing the package imports neither torch nor mteb nor
# matplotlib.
_HOME = {
    "aligning.align": ["align"],
    "corpora.sizes_encoder": ["SizesEncoder"],
    "cutting.asymmetric": ["asymmetric"],
    "cutting.truncate": ["truncate"],
    "errors": ["DataWarning", "UsageError"],
    "cutting.truncated_transformer": ["TruncatedTransformer"],
    "encoding.encode_sizes": ["encode_sizes"],
    "grid.recommend": ["Recommendation"],
    "grid.comparison": ["GridComparison"],
    "own_data.classification": ["classification_task"],
    "own_data.pairs": ["pair_task", "sts_task"],
    "own_data.search": ["retrieval_task"],
    "evaluation.evaluate": ["evaluate"],
    "evaluation.truncations": ["evaluate_truncations"],
    "evaluation.evaluator": ["GridEvaluator"],
    "grid.grid_result": ["GridResult"],
    "grid.truncation_result": ["TruncationResult"],
    "evaluation.latency": ["benchmark_latency"],
    "healing.heal": ["heal"],
    "hub.load": ["load"],
    "model_card.add": ["add_to_model_card"],
    "corpora.to_parquet": ["encode_to_parquet"],
    "exporting.export_onnx": ["export_onnx"],
    "exporting.onnx_embedder": ["OnnxEmbedder"],
    "plots.speedup": ["plot_speedup"],
    "queries.fit_queries": ["fit_queries"],
    "queries.token_table": ["TokenTable"],
    "sizes": ["Size", "sizes_ladder"],
    "evaluation.coordinate_spread": ["CoordinateSpread", "coordinate_spread"],
}

__all__ = [
    "CoordinateSpread",
    "DataWarning",
    "GridComparison",
    "GridEvaluator",
    "GridResult",
    "OnnxEmbedder",
    "Recommendation",
    "Size",
    "SizesEncoder",
    "TokenTable",
    "TruncatedTransformer",
    "TruncationResult",
    "UsageError",
    "add_to_model_card",
    "align",
    "asymmetric",
    "benchmark_latency",
    "classification_task",
    "coordinate_spread",
    "encode_sizes",
    "encode_to_parquet",
    "evaluate",
    "evaluate_truncations",
    "export_onnx",
    "fit_queries",
    "heal",
    "load",
    "pair_task",
    "plot_speedup",
    "retrieval_task",
    "sizes_ladder",
    "sts_task",
    "truncate",
]


# mteb and others import themselves in circles, which fails if threads enter at different places.
_ONE_AT_A_TIME = RLock()


def __getattr__(name: str) -> object:
    for module, names in _HOME.items():
        if name in names:
            with _ONE_AT_A_TIME, naming_the_extra(f"`{name}`"):
                globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
