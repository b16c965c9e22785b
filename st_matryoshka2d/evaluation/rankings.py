"""The best documents of each query, as a corpus goes by: in memory, and in a file that a killed run goes on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from st_matryoshka2d.files import replace_file

if TYPE_CHECKING:
    from mteb.types import QueryDatasetType


_NONE = -1


@dataclass(frozen=True)
class Rankings:
    """For some queries, the top k documents under each variant."""

    rows: Int[Tensor, "variants queries top"]
    scores: Float[Tensor, "variants queries top"]

    @classmethod
    def none(cls, variants: int, queries: int) -> Rankings:
        """Before any document was seen."""
        return cls(torch.empty(variants, queries, 0, dtype=torch.int32), torch.empty(variants, queries, 0))

    def with_documents(
        self, rows: Int[Tensor, "#variants queries new"], scores: Float[Tensor, "variants queries new"], top_k: int
    ) -> Rankings:
        """The top k of these and more."""
        all_scores = torch.cat([self.scores, scores], dim=2)
        all_rows = torch.cat([self.rows, rows.expand(*scores.shape).to(torch.int32)], dim=2)
        best = _order(all_scores, all_rows).topk(min(top_k, all_scores.shape[2]), dim=2).indices
        kept = all_scores.gather(2, best)
        return Rankings(all_rows.gather(2, best).masked_fill(kept == -torch.inf, _NONE), kept)


@dataclass(frozen=True)
class Candidates:
    """For some queries, the documents that are among the top k under any variant, with their scores under every variant."""

    rows: Int[Tensor, "queries kept"]
    scores: Float[Tensor, "variants queries kept"]

    @classmethod
    def none(cls, variants: int, queries: int) -> Candidates:
        """Before any document was seen."""
        return cls(torch.empty(queries, 0, dtype=torch.int32), torch.empty(variants, queries, 0))

    def with_documents(
        self, rows: Int[Tensor, "queries new"], scores: Float[Tensor, "variants queries new"], top_k: int
    ) -> Candidates:
        """These and more, as far as they are among the top k of a variant."""
        all_rows = torch.cat([self.rows, rows], dim=1)
        all_scores = torch.cat([self.scores, scores], dim=2)
        kept = torch.zeros_like(all_rows, dtype=torch.bool)
        for of_variant in all_scores:
            best = _order(of_variant, all_rows).topk(min(top_k, of_variant.shape[1]), dim=1, sorted=False)
            kept.scatter_(1, best.indices, True)
        kept &= (all_rows != _NONE) & (all_scores[0] > -torch.inf)
        # Queries keep different numbers of documents: the kept ones go to the left, and the table is as wide as the longest.
        order = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : int(kept.sum(1).max())]
        kept = kept.gather(1, order)
        return Candidates(
            all_rows.gather(1, order).masked_fill(~kept, _NONE),
            all_scores.gather(2, order.expand(len(all_scores), -1, -1)).masked_fill(~kept, -torch.inf),
        )


def _order(scores: Tensor, rows: Tensor) -> Tensor:
    """Integers in the order of scores, no two alike: of equal scores the lower row has the larger."""
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # -0.0 becomes 0.0
    # As integers, the bits of floats above 0 are in the order of the floats, those of floats below 0 the other way round.
    return (torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32) - rows


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

    def results(self, variant: int) -> dict[str, dict[str, float]]:
        """Similarities by query and document, best first, as mteb wants them."""
        rows = [row for block in self.rankings for row in block.rows[variant].tolist()]
        scores = [row for block in self.rankings for row in block.scores[variant].tolist()]
        return {
            query: {self.ids[row]: score for row, score in zip(*of_query, strict=True) if row >= 0}
            for query, *of_query in zip(self.query_ids, rows, scores, strict=True)
        }
