"""Search a corpus once, in chunks, for all variants; memory does not grow with the corpus."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from mteb.types import CorpusDatasetType, PromptType, QueryDatasetType
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm

from st_matryoshka2d._hosts.mteb_texts import document_texts, query_texts
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.embeddings import Embeddings
from st_matryoshka2d.evaluation.rankings import BestDocuments, Rankings, prefix_similarities
from st_matryoshka2d.evaluation.variants import Variant, quantise, ranges_of
from st_matryoshka2d.files.atomic import replace_file

_BLOCK = 8_000_000  # similarities of all variants in memory at a time: 32 MB, and some copies
_BETWEEN_SAVES = 10.0  # seconds between two writes of the state, which may take gigabytes


@dataclass(frozen=True)
class Queries:
    """The queries of a split and subset; `top_ranked` limits each to given documents, in reranking tasks."""

    name: str
    rows: QueryDatasetType
    top_k: int
    top_ranked: Mapping[str, Sequence[str]] | None = None


class TaskSearch:
    """The best documents of every query of a task under every variant, from one pass over each corpus."""

    def __init__(self, embeddings: Embeddings, variants: Iterable[Variant], *, corpus_chunk_size: int = 4096) -> None:
        self.embeddings = embeddings
        self.variants = list(variants)
        self._corpus_chunk_size = corpus_chunk_size
        self._best: dict[str, BestDocuments] = {}

    def best_documents(self, corpus: CorpusDatasetType, queries: Queries, **encode_kwargs: Any) -> BestDocuments:
        """Return the best documents of every query."""
        if queries.name not in self._best:
            self._best[queries.name] = self._search(corpus, queries, encode_kwargs)
        return self._best[queries.name]

    def _search(self, corpus: CorpusDatasetType, queries: Queries, encode_kwargs: dict[str, Any]) -> BestDocuments:
        folder, saved, size = self.embeddings.folder, time.monotonic(), self._corpus_chunk_size
        file = folder / f"search-{queries.name}.safetensors" if folder is not None else None
        reader = _Reader(self, corpus, queries, size, encode_kwargs)
        state = SearchState.begin(file, reader.made_for, [len(block) for block in reader.blocks], len(self.variants))
        hidden, done = not self.embeddings.show_progress_bar, min(state.chunks * size, len(corpus))
        with tqdm(total=len(corpus), initial=done, desc="Documents", leave=False, disable=hidden) as bar:
            for start in range(done, len(corpus), size):
                reader.read(state, start, bar)
                stop = min(start + size, len(corpus))
                bar.update(stop - bar.n)  # repeated texts
                if stop == len(corpus) or time.monotonic() - saved >= _BETWEEN_SAVES:
                    state.save(file, reader.made_for)
                    saved = time.monotonic()
        if self.embeddings.existing is not None:
            self.embeddings.existing.end()
        rows = sorted({row for block in state.blocks for row in block.rows.unique().tolist() if row >= 0})
        ids = dict(zip(rows, corpus.select(rows)["id"], strict=True))
        return BestDocuments(list(queries.rows["id"]), state.blocks, ids)


@dataclass
class SearchState:
    """The results so far, for the chunks of a corpus that were read, and a file from which a killed run resumes."""

    chunks: int
    blocks: list[Rankings]
    ranges: list[Tensor]

    @classmethod
    def begin(cls, file: Path | None, made_for: str, blocks: Sequence[int], variants: int) -> SearchState:
        """Load the state from the file if it belongs to the same search; otherwise start empty."""
        if file is not None and file.exists():
            try:
                with safe_open(file, framework="pt") as saved:
                    about, parts = saved.metadata(), {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
            except SafetensorError as error:
                raise UsageError(f"{file} cannot be read. Delete it to have the corpus read again. {error}") from error
            if about["made_for"] == made_for:
                best = [Rankings(parts[f"rows.{number}"], parts[f"scores.{number}"]) for number in range(len(blocks))]
                ranges = [parts[f"ranges.{number}"] for number in range(int(about["ranges"]))]
                return cls(int(about["chunks"]), best, ranges)
            file.unlink()
        return cls(0, [Rankings.none(variants, queries) for queries in blocks], [])

    def save(self, file: Path | None, made_for: str) -> None:
        """Write the state atomically."""
        if file is None:
            return
        tensors = {f"ranges.{number}": ranges.contiguous() for number, ranges in enumerate(self.ranges)}
        for number, block in enumerate(self.blocks):
            tensors |= {f"rows.{number}": block.rows.contiguous(), f"scores.{number}": block.scores.contiguous()}
        about = {"made_for": made_for, "chunks": str(self.chunks), "ranges": str(len(self.ranges))}
        replace_file(file, lambda part: save_file(tensors, part, about))


@dataclass(frozen=True)
class _Group:
    """Variants that only differ in dim: one matrix product serves them all."""

    first: Variant  # the one with the fewest dims
    dims: list[int]
    places: list[int]


def _groups(variants: Sequence[Variant]) -> list[_Group]:
    groups: dict[tuple[object, ...], _Group] = {}
    for place, variant in sorted(enumerate(variants), key=lambda pair: pair[1].size.dim):
        alike = variant.size.num_layers, variant.document_layers, variant.truncation.name, variant.precision
        group = groups.setdefault(alike, _Group(variant, [], []))
        group.dims.append(variant.size.dim)
        group.places.append(place)
    return list(groups.values())


class _Reader:
    """Scores a corpus chunk by chunk."""

    def __init__(
        self, search: TaskSearch, corpus: CorpusDatasetType, queries: Queries, chunk_size: int, encode_kwargs: dict[str, Any]
    ) -> None:
        self._embeddings, self._corpus, self._queries = search.embeddings, corpus, queries
        self._chunk_size, self._encode_kwargs = chunk_size, encode_kwargs
        self._groups = _groups(search.variants)
        texts = query_texts(queries.rows)
        step = max(1, _BLOCK // (len(search.variants) * (chunk_size + queries.top_k)))
        self.blocks = [range(start, min(start + step, len(texts))) for start in range(0, len(texts), step)]
        identity: list[Any] = [list(map(str, search.variants)), list(queries.rows["id"]), texts, queries.top_ranked is None]
        identity += [len(corpus), chunk_size, queries.top_k]
        # Everything that a resumed search must have in common with the saved state.
        self.made_for = blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()
        by_layer = self._embeddings.of_texts(texts, prompt_type=PromptType.query, **encode_kwargs)
        self._of_queries = [
            quantise(group.first.truncation(by_layer[group.first.size.num_layers]), group.first.precision)
            for group in self._groups
        ]

    def read(self, state: SearchState, start: int, bar: tqdm[Any]) -> None:
        """Score a chunk; the first one determines the ranges to which all scale integers."""
        chunk = self._corpus[start : start + self._chunk_size]
        documents = self._embeddings.of_documents(document_texts(chunk), start, bar, **self._encode_kwargs)
        of_groups = [group.first.truncation(documents[group.first.document_layers]) for group in self._groups]
        state.ranges = state.ranges or list(map(ranges_of, of_groups))
        stored = [
            quantise(coordinates, group.first.precision, ranges)
            for group, coordinates, ranges in zip(self._groups, of_groups, state.ranges, strict=True)
        ]
        rows = torch.arange(start, start + len(chunk["id"]), dtype=torch.int32)
        for number, block in enumerate(self.blocks):
            scores = self._scores(stored, block)
            if (top_ranked := self._queries.top_ranked) is not None:
                asked = [{*top_ranked.get(query, ())} for query in self._queries.rows["id"][block.start : block.stop]]
                ranked = torch.tensor([[document in of_query for document in chunk["id"]] for of_query in asked])
                scores.masked_fill_(~ranked, -torch.inf)
            new = rows.expand(len(block), -1)
            state.blocks[number] = state.blocks[number].with_documents(new, scores, self._queries.top_k)
        state.chunks += 1

    def _scores(self, stored: Sequence[Tensor], block: range) -> Tensor:
        """Compute similarities (variants, queries of the block, documents)."""
        scores: dict[int, Tensor] = {}
        for group, queries, documents in zip(self._groups, self._of_queries, stored, strict=True):
            of_block = queries[block.start : block.stop]
            by_dim = prefix_similarities(of_block, documents, group.dims, self._embeddings.similarity)
            scores |= zip(group.places, by_dim, strict=True)
        return torch.stack([scores[place] for place in range(len(scores))])
