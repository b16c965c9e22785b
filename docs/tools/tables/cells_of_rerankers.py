"""The cells of the table on rerankers."""

from __future__ import annotations

from reports import Cells, reported

__all__ = ["rerankers"]


def rerankers() -> Cells:
    """Return how well pairs are scored by embeddings, and by a model of pairs, whole and with half of its layers."""
    table = reported("pair_scores/stsb.md")
    return [["", "STS-B"], *([name, cells[0]] for name, cells in table.items() if name)]
