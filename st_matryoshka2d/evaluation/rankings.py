"""What is searched for and what was found: in memory, and in a file that a killed run goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from mteb.types import QueryDatasetType
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from st_matryoshka2d.files import replace_file
from st_matryoshka2d.topk import Candidates, Rankings

Best = Rankings | Candidates


@dataclass
class SearchState:
    """What was found in the part of a corpus that was read."""

    turns_done: int
    blocks: list[Best]
    ranges: list[Tensor]

    @classmethod
    def begin(
        cls, file: Path | None, made_for: str, blocks: Sequence[int], variants: int, kind: type[Best] = Rankings
    ) -> SearchState:
        """What the file has, where it was made for the same search; nothing found yet, otherwise."""
        if file is None or not file.exists():
            return cls(0, [kind.none(variants, queries) for queries in blocks], [])
        try:
            with safe_open(file, framework="pt") as saved:
                told, found = saved.metadata(), {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{file} is broken; delete it, and the corpus is read again. {error}") from error
        if told["made_for"] != made_for:
            file.unlink()
            return cls.begin(file, made_for, blocks, variants, kind)
        kept = [kind(found[f"rows.{number}"], found[f"scores.{number}"]) for number in range(len(blocks))]
        return cls(int(told["turns_done"]), kept, [found[f"ranges.{number}"] for number in range(int(told["ranges"]))])

    def save(self, file: Path | None, made_for: str) -> None:
        """Write everything, whole or not at all."""
        if file is None:
            return
        tensors = {f"ranges.{number}": ranges.contiguous() for number, ranges in enumerate(self.ranges)}
        for number, block in enumerate(self.blocks):
            tensors |= {f"rows.{number}": block.rows.contiguous(), f"scores.{number}": block.scores.contiguous()}
        told = {"made_for": made_for, "turns_done": str(self.turns_done), "ranges": str(len(self.ranges))}
        replace_file(file, lambda part: save_file(tensors, part, told))

    @staticmethod
    def merged(states: Sequence[SearchState], top_k: int) -> list[Best]:
        """What several processes found in their parts of one corpus."""
        whole = list(states[0].blocks)
        for other in states[1:]:
            for number, block in enumerate(other.blocks):
                whole[number] = whole[number].with_documents(block.rows, block.scores, top_k)
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
        return self._by_id((block.rows, block.scores[variant]) for block in self.candidates)

    def results(self, variant: int) -> dict[str, dict[str, float]]:
        """Similarities by query and document, best first, as mteb wants them."""
        return self._by_id((block.rows[variant], block.scores[variant]) for block in self.rankings)

    def _by_id(self, blocks: Iterable[tuple[Tensor, Tensor]]) -> dict[str, dict[str, float]]:
        of_queries = (of_query for rows, scores in blocks for of_query in zip(rows.tolist(), scores.tolist(), strict=True))
        return {
            query: {self.ids[row]: score for row, score in zip(rows, scores, strict=True) if row >= 0}
            for query, (rows, scores) in zip(self.query_ids, of_queries, strict=True)
        }
