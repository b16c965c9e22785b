"""Search a corpus once, in chunks, for all variants; memory does not grow with the corpus."""

from __future__ import annotations

import copy
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from mteb.types import CorpusDatasetType, PromptType
from torch import Tensor
from tqdm.auto import tqdm

from st_matryoshka2d.evaluation.embeddings import Embeddings
from st_matryoshka2d.evaluation.rankings import Found, SearchState, Wanted
from st_matryoshka2d.evaluation.variants import Variant, quantise, ranges_of
from st_matryoshka2d.topk import Candidates, Rankings, prefix_similarities

_BLOCK = 8_000_000  # similarities of all variants in memory at a time: 32 MB, and some copies
_BETWEEN_SAVES = 10.0  # seconds between two writes of the state, which may take gigabytes


class CorpusSearch:
    """The best documents of every query under every variant, from one pass over the corpus.

    With `shortlist`, the best documents of each variant, that many, also keep their scores under all other variants.
    """

    def __init__(
        self, embeddings: Embeddings, variants: Iterable[Variant], *, corpus_chunk_size: int = 4096, shortlist: int = 0
    ) -> None:
        self.embeddings = embeddings
        self.variants = list(variants)
        self.corpus_chunk_size = corpus_chunk_size
        self.shortlist = shortlist
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
        if self.shortlist and wanted.top_ranked is not None:
            task = encode_kwargs["task_metadata"].name
            raise ValueError(f"{task} ranks given candidates for each query; two-stage search needs a corpus to search.")
        if wanted.name not in self._found:
            self._found[wanted.name] = self._search(corpus, wanted, encode_kwargs)
            self.embeddings.after_encoding()
        return self._found[wanted.name]

    def _search(self, corpus: CorpusDatasetType, wanted: Wanted, encode_kwargs: dict[str, Any]) -> Found:
        everyones, rank = self.embeddings.processes.everyones, self.embeddings.processes.rank
        folder = self.embeddings.folder
        file = folder / f"search-{wanted.name}-{rank}.safetensors" if folder is not None else None
        reader = _Reader(self, corpus, wanted, encode_kwargs)
        lengths, kind = [len(block) for block in reader.blocks], Candidates if self.shortlist else Rankings
        state = SearchState.begin(file, reader.made_for, lengths, len(self.variants), kind)
        # A killed launch may have saved the ranges on some processes only.
        state.ranges = next(filter(None, everyones(state.ranges)), [])
        hidden, saved = not self.embeddings.show_progress_bar, time.monotonic()
        done = reader.documents_before(state.turns_done)
        with tqdm(total=len(corpus), initial=done, desc="Documents", leave=False, disable=hidden) as bar:
            for turn in range(state.turns_done, reader.turns):
                reader.read(state, turn, bar)
                bar.update(reader.documents_before(turn + 1) - bar.n)  # other processes' documents, and repeated texts
                if turn == reader.turns - 1 or time.monotonic() - saved >= _BETWEEN_SAVES:
                    state.save(file, reader.made_for)
                    saved = time.monotonic()
        whole = SearchState.merged(everyones(state), reader.top_k)
        rows = sorted({row for block in whole for row in block.rows.unique().tolist() if row >= 0})
        ids = dict(zip(rows, corpus.select(rows)["id"], strict=True))
        # The candidates contain the best documents of each variant.
        rankings = [
            Rankings.none(*block.scores.shape[:2]).with_documents(block.rows, block.scores, reader.top_k) for block in whole
        ]
        candidates = [block for block in whole if isinstance(block, Candidates)]
        return Found(list(wanted.queries["id"]), rankings, candidates, ids, len(corpus))


@dataclass(frozen=True)
class _Group:
    """Variants that only differ in dim: one matrix product serves them all."""

    like: Variant
    dims: list[int]
    places: list[int]

    def queries(self, by_layer: Mapping[int, Tensor]) -> Tensor:
        layers = self.like.size.num_layers
        return quantise(self.like.truncation(by_layer[layers], layers), self.like.precision)

    def documents(self, by_layer: Mapping[int, Tensor]) -> Tensor:
        layers = self.like.document_layers
        return self.like.truncation(by_layer[layers], layers)


def _groups(variants: Sequence[Variant]) -> list[_Group]:
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place in sorted(range(len(variants)), key=lambda place: variants[place].size.dim):
        one = variants[place]
        alike[one.size.num_layers, one.document_layers, one.truncation.name, one.precision].append(place)
    return [_Group(variants[places[0]], [variants[place].size.dim for place in places], places) for places in alike.values()]


class _Reader:
    """Scores a corpus chunk by chunk; in each turn, every process reads one chunk."""

    def __init__(
        self, search: CorpusSearch, corpus: CorpusDatasetType, wanted: Wanted, encode_kwargs: dict[str, Any]
    ) -> None:
        self._search, self._embeddings, self._corpus = search, search.embeddings, corpus
        self._wanted, self._encode_kwargs = wanted, encode_kwargs
        self.top_k = search.shortlist or wanted.top_k
        self._groups = _groups(search.variants)
        self._texts = _query_texts(wanted.queries)
        step = max(1, _BLOCK // (len(search.variants) * (search.corpus_chunk_size + self.top_k)))
        self.blocks = [range(start, min(start + step, len(self._texts))) for start in range(0, len(self._texts), step)]
        self._turn = search.corpus_chunk_size * self._embeddings.processes.count
        self.turns = -(-len(corpus) // self._turn)
        by_layer = self._embeddings.of_texts(self._texts, prompt_type=PromptType.query, **encode_kwargs)
        self._queries = [group.queries(by_layer) for group in self._groups]

    @cached_property
    def made_for(self) -> str:
        """Digest of everything that a resumed search must have in common with the saved state."""
        wanted = [list(self._wanted.queries["id"]), self._texts, self._wanted.top_ranked is None]
        identity = [list(map(str, self._search.variants)), str(self._embeddings.processes), *wanted, len(self._corpus)]
        identity += [self._search.corpus_chunk_size, self._search.shortlist, self.top_k]
        return blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()

    def documents_before(self, turn: int) -> int:
        """Count the documents that all processes have read before a turn."""
        return min(turn * self._turn, len(self._corpus))

    def read(self, state: SearchState, turn: int, bar: tqdm[Any]) -> None:
        """Score this process's chunk of a turn; in the last turn it may be empty."""
        rank, count, start = self._embeddings.processes.rank, self._embeddings.processes.count, turn * self._turn
        length = min(self._turn, len(self._corpus) - start)
        rows = range(start + length * rank // count, start + length * (rank + 1) // count)
        chunk = self._corpus[rows.start : rows.stop] if rows else {}
        documents = self._embeddings.of_documents(_document_texts(chunk), bar, **self._encode_kwargs) if rows else {}
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
        ranges = [ranges_of(group.documents(documents)[:own]) for group in self._groups if own]
        shares = self._embeddings.processes.everyones(ranges)
        return [ranges_of(torch.cat(of_group)) for of_group in zip(*filter(None, shares), strict=True)]

    def _scores(self, documents: Mapping[int, Tensor], block: range, ranges: Sequence[Tensor]) -> Tensor:
        """Compute similarities (variants, queries of the block, documents)."""
        scores: list[Tensor] = [torch.empty(0)] * len(self._search.variants)
        for group, queries, of_group in zip(self._groups, self._queries, ranges, strict=True):
            coordinates = quantise(group.documents(documents), group.like.precision, of_group)
            of_block = queries[block.start : block.stop]
            by_dim = prefix_similarities(of_block, coordinates, group.dims, self._embeddings.similarity)
            for place, of_variant in zip(group.places, by_dim, strict=True):
                scores[place] = of_variant
        return torch.stack(scores)


def _query_texts(queries: Any) -> list[str]:
    """Convert queries to texts as mteb (2.26) does: an instruction goes after a query, but before a conversation."""
    given = list(queries["text"])
    instructions = queries["instruction"] if "instruction" in queries.column_names else [None] * len(given)
    texts = []
    for query, instruction in zip(given, instructions, strict=True):
        parts = [query, instruction]
        if not isinstance(query, str):
            turns = (said if isinstance(said, str) else f"{said['role']}: {said['content']}" for said in query)
            parts = [instruction, "; ".join(turns)]
        texts.append(" ".join(part for part in parts if part is not None))
    return texts


def _document_texts(chunk: Mapping[str, Sequence[str]]) -> list[str]:
    """Join titles and texts as mteb does."""
    titles = chunk.get("title") or [""] * len(chunk["text"])
    return [f"{title} {text}".strip() if title else text.strip() for title, text in zip(titles, chunk["text"], strict=True)]
