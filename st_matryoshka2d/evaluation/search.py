"""Search a corpus once, in chunks, for all variants; memory does not grow with the corpus."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from mteb.types import CorpusDatasetType, PromptType
from torch import Tensor
from tqdm.auto import tqdm

from st_matryoshka2d._hosts.mteb import document_texts, query_texts
from st_matryoshka2d.evaluation.embeddings import Embeddings
from st_matryoshka2d.evaluation.rankings import prefix_similarities
from st_matryoshka2d.evaluation.search_state import Found, SearchState, Wanted
from st_matryoshka2d.evaluation.variants import Variant, quantise, ranges_of

_BLOCK = 8_000_000  # similarities of all variants in memory at a time: 32 MB, and some copies
_BETWEEN_SAVES = 10.0  # seconds between two writes of the state, which may take gigabytes


class CorpusSearch:
    """The best documents of every query under every variant, from one pass over the corpus."""

    def __init__(self, embeddings: Embeddings, variants: Iterable[Variant], *, corpus_chunk_size: int = 4096) -> None:
        self.embeddings = embeddings
        self.variants = list(variants)
        self.corpus_chunk_size = corpus_chunk_size
        self._found: dict[str, Found] = {}

    def alone(self) -> CorpusSearch:
        """Copy without the other processes, for work that is not shared with them."""
        single = copy.copy(self)
        single.embeddings = self.embeddings.alone()
        return single

    def begin(self, folder: Path | None) -> None:
        """Start a new task; the folder caches its search state."""
        self.embeddings.begin(folder)
        self._found.clear()

    def found(self, corpus: CorpusDatasetType, wanted: Wanted, **encode_kwargs: Any) -> Found:
        """Return the best documents of every query; each process reads a share of the corpus."""
        if wanted.name not in self._found:
            self._found[wanted.name] = self._search(corpus, wanted, encode_kwargs)
            self.embeddings.after_encoding()
        return self._found[wanted.name]

    def _search(self, corpus: CorpusDatasetType, wanted: Wanted, encode_kwargs: dict[str, Any]) -> Found:
        processes, folder, saved = self.embeddings.processes, self.embeddings.folder, time.monotonic()
        file = folder / f"search-{wanted.name}-{processes.rank}.safetensors" if folder is not None else None
        reader = _Reader(self, corpus, wanted, encode_kwargs)
        state = SearchState.begin(file, reader.made_for, [len(block) for block in reader.blocks], len(self.variants))
        # A killed launch may have saved the ranges on some processes only.
        state.ranges = next(filter(None, processes.everyones(state.ranges)), [])
        hidden, done = not self.embeddings.show_progress_bar, reader.documents_before(state.turns_done)
        with tqdm(total=len(corpus), initial=done, desc="Documents", leave=False, disable=hidden) as bar:
            for turn in range(state.turns_done, reader.turns):
                reader.read(state, turn, bar)
                # other processes' documents, and repeated texts
                bar.update(reader.documents_before(turn + 1) - bar.n)
                if turn == reader.turns - 1 or time.monotonic() - saved >= _BETWEEN_SAVES:
                    state.save(file, reader.made_for)
                    saved = time.monotonic()
        whole = SearchState.merged(processes.everyones(state), reader.top_k)
        rows = sorted({row for block in whole for row in block.rows.unique().tolist() if row >= 0})
        ids = dict(zip(rows, corpus.select(rows)["id"], strict=True))
        return Found(list(wanted.queries["id"]), whole, ids)


@dataclass(frozen=True)
class _Group:
    """Variants that only differ in dim: one matrix product serves them all."""

    first: Variant  # the one with the fewest dims
    dims: list[int]
    places: list[int]

    def coordinates(self, by_layer: Mapping[int, Tensor], layers: int) -> Tensor:
        return self.first.truncation(by_layer[layers], layers)


def _groups(variants: Sequence[Variant]) -> list[_Group]:
    groups: dict[tuple[object, ...], _Group] = {}
    for place, one in sorted(enumerate(variants), key=lambda pair: pair[1].size.dim):
        alike = one.size.num_layers, one.document_layers, one.truncation.name, one.precision
        group = groups.setdefault(alike, _Group(one, [], []))
        group.dims.append(one.size.dim)
        group.places.append(place)
    return list(groups.values())


class _Reader:
    """Scores a corpus chunk by chunk; in each turn, every process reads one chunk."""

    def __init__(
        self, search: CorpusSearch, corpus: CorpusDatasetType, wanted: Wanted, encode_kwargs: dict[str, Any]
    ) -> None:
        self._search, self._embeddings, self._corpus = search, search.embeddings, corpus
        self._wanted, self._encode_kwargs = wanted, encode_kwargs
        self.top_k = wanted.top_k
        self._groups = _groups(search.variants)
        texts = query_texts(wanted.queries)
        step = max(1, _BLOCK // (len(search.variants) * (search.corpus_chunk_size + self.top_k)))
        self.blocks = [range(start, min(start + step, len(texts))) for start in range(0, len(texts), step)]
        self._turn = search.corpus_chunk_size * self._embeddings.processes.count
        self.turns = -(-len(corpus) // self._turn)
        wanted_ids = [list(wanted.queries["id"]), texts, wanted.top_ranked is None]
        identity = [list(map(str, search.variants)), str(self._embeddings.processes), *wanted_ids, len(corpus)]
        identity += [search.corpus_chunk_size, self.top_k]
        # Everything that a resumed search must have in common with the saved state.
        self.made_for = blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()
        by_layer = self._embeddings.of_texts(texts, prompt_type=PromptType.query, **encode_kwargs)
        self._queries = [
            quantise(group.coordinates(by_layer, group.first.size.num_layers), group.first.precision)
            for group in self._groups
        ]

    def documents_before(self, turn: int) -> int:
        """Count the documents that all processes have read before a turn."""
        return min(turn * self._turn, len(self._corpus))

    def read(self, state: SearchState, turn: int, bar: tqdm[Any]) -> None:
        """Score this process's chunk of a turn; in the last turn it may be empty."""
        rank, count, start = self._embeddings.processes.rank, self._embeddings.processes.count, turn * self._turn
        length = min(self._turn, len(self._corpus) - start)
        rows = range(start + length * rank // count, start + length * (rank + 1) // count)
        chunk = self._corpus[rows.start : rows.stop] if rows else {}
        documents = self._embeddings.of_documents(document_texts(chunk), bar, **self._encode_kwargs) if rows else {}
        if not state.ranges:
            state.ranges = self._ranges(documents, rows)
        for number, block in enumerate(self.blocks if rows else ()):
            scores = self._scores(documents, block, state.ranges)
            if (top_ranked := self._wanted.top_ranked) is not None:
                asked = [{*top_ranked.get(query, ())} for query in self._wanted.queries["id"][block.start : block.stop]]
                ranked = torch.tensor([[document in of_query for document in chunk["id"]] for of_query in asked])
                scores.masked_fill_(~ranked, -torch.inf)
            new = torch.arange(rows.start, rows.stop, dtype=torch.int32).expand(len(block), -1)
            state.blocks[number] = state.blocks[number].with_documents(new, scores, self.top_k)
        state.turns_done += 1

    def _ranges(self, documents: Mapping[int, Tensor], rows: range) -> list[Tensor]:
        """Return the ranges of the first chunk, which may be spread over processes; all chunks use them for integers."""
        own = max(0, min(len(rows), self._search.corpus_chunk_size - rows.start))
        chunks = [group.coordinates(documents, group.first.document_layers)[:own] for group in self._groups if own]
        shares = self._embeddings.processes.everyones(list(map(ranges_of, chunks)))
        return [ranges_of(torch.cat(of_group)) for of_group in zip(*filter(None, shares), strict=True)]

    def _scores(self, documents: Mapping[int, Tensor], block: range, ranges: Sequence[Tensor]) -> Tensor:
        """Compute similarities (variants, queries of the block, documents)."""
        scores: dict[int, Tensor] = {}
        for group, queries, of_group in zip(self._groups, self._queries, ranges, strict=True):
            coordinates = group.coordinates(documents, group.first.document_layers)
            stored, of_block = quantise(coordinates, group.first.precision, of_group), queries[block.start : block.stop]
            by_dim = prefix_similarities(of_block, stored, group.dims, self._embeddings.similarity)
            scores |= zip(group.places, by_dim, strict=True)
        return torch.stack([scores[place] for place in range(len(scores))])
