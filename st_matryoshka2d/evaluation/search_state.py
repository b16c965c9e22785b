"""Queries and results of a search, in memory and in a file from which a killed run resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mteb.types import QueryDatasetType
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.rankings import Rankings
from st_matryoshka2d.files.atomic import replace_file


@dataclass
class SearchState:
    """The results so far, for the part of a corpus that was read."""

    turns_done: int
    blocks: list[Rankings]
    ranges: list[Tensor]

    @classmethod
    def begin(cls, file: Path | None, made_for: str, blocks: Sequence[int], variants: int) -> SearchState:
        """Load the state from the file if it belongs to the same search; otherwise start empty."""
        if file is not None and file.exists():
            try:
                with safe_open(file, framework="pt") as saved:
                    about, found = saved.metadata(), {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
            except SafetensorError as error:
                raise UsageError(f"{file} cannot be read. Delete it to have the corpus read again. {error}") from error
            if about["made_for"] == made_for:
                best = [Rankings(found[f"rows.{number}"], found[f"scores.{number}"]) for number in range(len(blocks))]
                ranges = [found[f"ranges.{number}"] for number in range(int(about["ranges"]))]
                return cls(int(about["turns_done"]), best, ranges)
            file.unlink()
        return cls(0, [Rankings.none(variants, queries) for queries in blocks], [])

    def save(self, file: Path | None, made_for: str) -> None:
        """Write the state atomically."""
        if file is None:
            return
        tensors = {f"ranges.{number}": ranges.contiguous() for number, ranges in enumerate(self.ranges)}
        for number, block in enumerate(self.blocks):
            tensors |= {f"rows.{number}": block.rows.contiguous(), f"scores.{number}": block.scores.contiguous()}
        about = {"made_for": made_for, "turns_done": str(self.turns_done), "ranges": str(len(self.ranges))}
        replace_file(file, lambda part: save_file(tensors, part, about))

    @staticmethod
    def merged(states: Sequence[SearchState], top_k: int) -> list[Rankings]:
        """Merge the results of several processes that read parts of one corpus."""
        whole = states[0].blocks
        for other in states[1:]:
            pairs = zip(whole, other.blocks, strict=True)
            whole = [block.with_documents(new.rows, new.scores, top_k) for block, new in pairs]
        return whole


@dataclass(frozen=True)
class Wanted:
    """The queries of a split and subset; `top_ranked` limits each to given documents, in reranking tasks."""

    name: str
    queries: QueryDatasetType
    top_k: int
    top_ranked: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Found:
    """The best documents of every query under every variant, in blocks of queries."""

    query_ids: list[str]
    rankings: list[Rankings]
    ids: dict[int, str] = field(repr=False)  # document ids by row of the corpus

    def results(self, variant: int) -> dict[str, dict[str, float]]:
        """Similarities by query and document, best first, in mteb's form."""
        blocks = ((block.rows[variant], block.scores[variant]) for block in self.rankings)
        of_queries = (of_query for rows, scores in blocks for of_query in zip(rows.tolist(), scores.tolist(), strict=True))
        return {
            query: {self.ids[row]: score for row, score in zip(rows, scores, strict=True) if row >= 0}
            for query, (rows, scores) in zip(self.query_ids, of_queries, strict=True)
        }
