"""What is searched for and what was found: in memory, and in a file that a killed run goes on from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from st_matryoshka2d.files import replace_file
from st_matryoshka2d.topk import Candidates, Rankings

if TYPE_CHECKING:
    from mteb.types import QueryDatasetType


@dataclass
class SearchState:
    """What was found in the part of a corpus that was read."""

    turns_done: int
    rankings: list[Rankings]
    candidates: list[Candidates]
    ranges: list[Tensor]

    @classmethod
    def begin(cls, file: Path | None, made_for: str, blocks: Sequence[int], variants: int) -> SearchState:
        """What the file has, where it was made for the same search; nothing found yet, otherwise."""
        if file is None or not file.exists():
            return cls(0, [Rankings.none(variants, n) for n in blocks], [Candidates.none(variants, n) for n in blocks], [])
        try:
            with safe_open(file, framework="pt") as saved:
                told, found = saved.metadata(), {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{file} is broken; delete it, and the corpus is read again. {error}") from error
        if told["made_for"] != made_for:
            file.unlink()
            return cls.begin(file, made_for, blocks, variants)
        numbers = range(len(blocks))
        return cls(
            int(told["turns_done"]),
            [Rankings(found[f"rankings.rows.{n}"], found[f"rankings.scores.{n}"]) for n in numbers],
            [Candidates(found[f"candidates.rows.{n}"], found[f"candidates.scores.{n}"]) for n in numbers],
            [found[f"ranges.{n}"] for n in range(int(told["ranges"]))],
        )

    def save(self, file: Path | None, made_for: str) -> None:
        """Write everything, whole or not at all."""
        if file is None:
            return
        tensors = {f"ranges.{number}": ranges.contiguous() for number, ranges in enumerate(self.ranges)}
        parts: dict[str, Sequence[Rankings | Candidates]] = {"rankings": self.rankings, "candidates": self.candidates}
        for name, number, block in ((name, *entry) for name, kept in parts.items() for entry in enumerate(kept)):
            tensors[f"{name}.rows.{number}"] = block.rows.contiguous()
            tensors[f"{name}.scores.{number}"] = block.scores.contiguous()
        told = {"made_for": made_for, "turns_done": str(self.turns_done), "ranges": str(len(self.ranges))}
        replace_file(file, lambda part: save_file(tensors, part, told))

    @staticmethod
    def merged(states: Sequence[SearchState], top_k: int, shortlist: int) -> SearchState:
        """What several processes found in their parts of one corpus."""
        whole = states[0]
        for other in states[1:]:
            for number, (rankings, candidates) in enumerate(zip(other.rankings, other.candidates, strict=True)):
                whole.rankings[number] = whole.rankings[number].with_documents(rankings.rows, rankings.scores, top_k)
                if shortlist:
                    whole.candidates[number] = whole.candidates[number].with_documents(
                        candidates.rows, candidates.scores, shortlist
                    )
        return whole


@dataclass(frozen=True)
class Wanted:
    """What is searched for: queries of a split and subset, and which ids each may get where documents are only ordered."""

    name: str
    queries: QueryDatasetType
    top_k: int
    top_ranked: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Found:
    """The best documents of every query under every variant, in blocks of queries; no candidates without a shortlist."""

    query_ids: list[str]
    rankings: list[Rankings]
    candidates: list[Candidates]
    ids: dict[int, str] = field(repr=False)  # of documents, by their row in the corpus
    documents: int = 0  # in the corpus

    def blocks(self) -> Iterator[Found]:
        """The blocks of queries, each by itself."""
        names = iter(self.query_ids)
        for rankings, candidates in zip(self.rankings, self.candidates, strict=True):
            ids = list(islice(names, len(candidates.rows)))
            yield replace(self, query_ids=ids, rankings=[rankings], candidates=[candidates])

    def candidate_scores(self, variant: int) -> dict[str, dict[str, float]]:
        """Similarities by query and document, of all candidates, in no order."""
        of_blocks = [(block.rows.tolist(), block.scores[variant].tolist()) for block in self.candidates]
        return self._by_id([row for rows, _ in of_blocks for row in rows], [row for _, rows in of_blocks for row in rows])

    def results(self, variant: int) -> dict[str, dict[str, float]]:
        """Similarities by query and document, best first, as mteb wants them."""
        rows = [row for block in self.rankings for row in block.rows[variant].tolist()]
        scores = [row for block in self.rankings for row in block.scores[variant].tolist()]
        return self._by_id(rows, scores)

    def _by_id(self, rows: list[list[int]], scores: list[list[float]]) -> dict[str, dict[str, float]]:
        return {
            query: {self.ids[row]: score for row, score in zip(*of_query, strict=True) if row >= 0}
            for query, *of_query in zip(self.query_ids, rows, scores, strict=True)
        }
