"""How far a search has come: in memory, and in a file that a killed run goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from st_matryoshka2d.evaluation.grid.files import replace_file
from st_matryoshka2d.evaluation.search.candidates import Candidates, Rankings

__all__ = ["SearchState"]


@dataclass
class SearchState:
    """What was found in the part of a corpus that was read.

    Args:
        turns_done: Chunks read by each process.
        rankings: For each block of queries.
        candidates: For each block of queries.
        ranges: For each group of views, the smallest and the largest value of each coordinate, (2, full dim).
    """

    turns_done: int
    rankings: list[Rankings]
    candidates: list[Candidates]
    ranges: list[Tensor]

    @classmethod
    def begin(cls, file: Path | None, made_for: str, blocks: Sequence[int], views: int) -> SearchState:
        """What the file has, where it was made for the same search; nothing found yet, otherwise.

        Args:
            file: Where `save` writes.
            made_for: Names the search.
            blocks: How many queries each block has.
            views: How many views there are.
        """
        if file is None or not file.exists():
            return cls(0, [Rankings.none(views, n) for n in blocks], [Candidates.none(views, n) for n in blocks], [])
        try:
            with safe_open(file, framework="pt") as saved:
                told, found = saved.metadata(), {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{file} is broken; delete it, and the corpus is read again. {error}") from error
        if told["made_for"] != made_for:
            file.unlink()
            return cls.begin(file, made_for, blocks, views)
        numbers = range(len(blocks))
        return cls(
            int(told["turns_done"]),
            [Rankings(found[f"rankings.rows.{n}"], found[f"rankings.scores.{n}"]) for n in numbers],
            [Candidates(found[f"candidates.rows.{n}"], found[f"candidates.scores.{n}"]) for n in numbers],
            [found[f"ranges.{n}"] for n in range(int(told["ranges"]))],
        )

    def save(self, file: Path | None, made_for: str) -> None:
        """Write everything, whole or not at all.

        Args:
            file: Where; None writes nothing.
            made_for: Names the search.
        """
        if file is None:
            return
        tensors: dict[str, Tensor] = {}
        parts: dict[str, Sequence[Rankings | Candidates]] = {"rankings": self.rankings, "candidates": self.candidates}
        for name, kept in parts.items():
            for number, block in enumerate(kept):
                tensors[f"{name}.rows.{number}"] = block.rows.contiguous()
                tensors[f"{name}.scores.{number}"] = block.scores.contiguous()
        tensors |= {f"ranges.{number}": ranges.contiguous() for number, ranges in enumerate(self.ranges)}
        told = {"made_for": made_for, "turns_done": str(self.turns_done), "ranges": str(len(self.ranges))}
        replace_file(file, lambda part: save_file(tensors, part, told))

    @staticmethod
    def merged(states: Sequence[SearchState], top_k: int, shortlist: int) -> SearchState:
        """What several processes found in their parts of one corpus.

        Args:
            states: One of each.
            top_k: Documents that each query gets.
            shortlist: Documents that each view keeps with their scores under all views.
        """
        whole = states[0]
        for other in states[1:]:
            for number, (rankings, candidates) in enumerate(zip(other.rankings, other.candidates, strict=True)):
                whole.rankings[number] = whole.rankings[number].with_documents(rankings.rows, rankings.scores, top_k)
                if shortlist:
                    whole.candidates[number] = whole.candidates[number].with_documents(
                        candidates.rows, candidates.scores, shortlist
                    )
        return whole
