"""Search a corpus once, in chunks, for all views: what is kept does not grow with the corpus."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from mteb._create_dataloaders import create_dataloader
from mteb.types import PromptType
from torch import Tensor
from tqdm.auto import tqdm

from st_matryoshka2d.evaluation.search.candidates import Rankings
from st_matryoshka2d.evaluation.search.found import Found, Search
from st_matryoshka2d.evaluation.search.similarities import prefix_similarities
from st_matryoshka2d.evaluation.search.state import SearchState
from st_matryoshka2d.evaluation.views.precision import quantise, ranges_of
from st_matryoshka2d.evaluation.views.views import Truncation, View

if TYPE_CHECKING:
    from mteb.types import CorpusDatasetType

    from st_matryoshka2d.evaluation.encoding.encoder import EncodeOnce

__all__ = ["search"]

# Similarities of some queries under all views that are in memory at a time: 32 MB, and some copies.
_BLOCK = 8_000_000

# Seconds between two writes of what was found, which may take gigabytes.
_BETWEEN_SAVES = 10.0


def search(
    shared: EncodeOnce, corpus: CorpusDatasetType, wanted: Search, *, file: Path | None, **encode_kwargs: Any
) -> Found:
    """Read the corpus once; several processes read each their share.

    Args:
        shared: Encodes, and knows the views.
        corpus: Columns `id`, `text` and perhaps `title`.
        wanted: What is searched for.
        file: Where what was found is written every few seconds and at the end, so that a killed run goes on behind it.
        **encode_kwargs: What mteb passes to `encode`.
    """
    everyones = shared.processes.everyones
    reader = _Reader(shared, corpus, wanted, encode_kwargs)
    state = SearchState.begin(file, reader.made_for, [len(block) for block in reader.blocks], len(shared.views))
    # A launch that was killed may have told these to some processes only.
    state.ranges = next(filter(None, everyones(state.ranges)), [])
    hidden = not shared.show_progress_bar
    saved = time.monotonic()
    done = reader.documents_before(state.turns_done)
    with tqdm(total=len(corpus), initial=done, desc="Documents", leave=False, disable=hidden) as bar:
        for turn in range(state.turns_done, reader.turns):
            reader.read(state, turn, bar)
            bar.update(reader.documents_before(turn + 1) - bar.n)  # those of other processes, and what is there twice
            if turn == reader.turns - 1 or time.monotonic() - saved >= _BETWEEN_SAVES:
                state.save(file, reader.made_for)
                saved = time.monotonic()
    whole = SearchState.merged(everyones(state), wanted.top_k, shared.shortlist)
    ids = _ids(corpus, whole.rankings)
    return Found(list(wanted.queries["id"]), shared.views, whole.rankings, whole.candidates, ids)


@dataclass(frozen=True)
class _Group:
    """Views that differ in dim alone: one product serves them."""

    query_layers: int
    document_layers: int
    truncation: Truncation
    precision: str
    dims: list[int]
    places: list[int]

    def queries(self, by_layer: Mapping[int, Tensor]) -> Tensor:
        return quantise(self.truncation(by_layer[self.query_layers], self.query_layers), self.precision)

    def documents(self, by_layer: Mapping[int, Tensor], ranges: Tensor) -> Tensor:
        return quantise(self.kept(by_layer), self.precision, ranges)

    def kept(self, by_layer: Mapping[int, Tensor]) -> Tensor:
        return self.truncation(by_layer[self.document_layers], self.document_layers)


def _groups(views: Sequence[View]) -> list[_Group]:
    places: dict[tuple[int, int, str, str], list[int]] = defaultdict(list)
    for place in sorted(range(len(views)), key=lambda place: views[place].size.dim):
        view = views[place]
        places[view.size.num_layers, view.document_layers, view.truncation.name, view.precision].append(place)
    return [
        _Group(queries, documents, views[here[0]].truncation, precision, [views[place].size.dim for place in here], here)
        for (queries, documents, _, precision), here in places.items()
    ]


class _Reader:
    """Scores one chunk of a corpus after the other.

    Where several processes share the work, each has a chunk of its own in a turn, of like length.
    """

    def __init__(self, shared: EncodeOnce, corpus: CorpusDatasetType, wanted: Search, encode_kwargs: dict[str, Any]) -> None:
        self._shared = shared
        self._corpus = corpus
        self._wanted = wanted
        self._encode_kwargs = encode_kwargs
        self._groups = _groups(shared.views)
        self._texts = _query_texts(wanted, encode_kwargs)
        step = max(1, _BLOCK // (len(shared.views) * (shared.corpus_chunk_size + wanted.top_k)))
        self.blocks = [range(start, min(start + step, len(self._texts))) for start in range(0, len(self._texts), step)]
        self._turn = shared.corpus_chunk_size * shared.processes.count
        self.turns = -(-len(corpus) // self._turn)
        by_layer = shared.encode_queries(self._texts, **encode_kwargs)
        self._queries = [group.queries(by_layer) for group in self._groups]

    @cached_property
    def made_for(self) -> str:
        """Differs where what was found so far could not be gone on with."""
        told = [
            [str(view) for view in self._shared.views],
            [self._shared.corpus_chunk_size, self._shared.shortlist, self._wanted.top_k, len(self._corpus)],
            [str(self._shared.processes), list(self._wanted.queries["id"]), self._texts, self._wanted.top_ranked is None],
        ]
        return blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()

    def documents_before(self, turn: int) -> int:
        """How many documents all processes have read before a turn.

        Args:
            turn: Which turn, from 0.
        """
        return min(turn * self._turn, len(self._corpus))

    def read(self, state: SearchState, turn: int, bar: tqdm[Any]) -> None:
        """Add a chunk of documents to what was found.

        Args:
            state: What was found so far; it is changed.
            turn: Which turn, from 0; there may be fewer documents than processes left for the last one.
            bar: Shows how many documents are done.
        """
        rows = self._rows(turn)
        chunk = self._corpus[rows.start : rows.stop] if rows else {}
        documents = self._shared.encode_documents(_document_texts(chunk), bar, **self._encode_kwargs) if rows else {}
        if not state.ranges:
            state.ranges = self._ranges(documents, rows)
        for number, block in enumerate(self.blocks if rows else ()):
            scores = self._scores(documents, block, state.ranges)
            if self._wanted.top_ranked is not None:
                scores.masked_fill_(~self._asked(block, chunk["id"]), -torch.inf)
            new = torch.arange(rows.start, rows.stop, dtype=torch.int32).expand(len(block), -1)
            state.rankings[number] = state.rankings[number].with_documents(new, scores, self._wanted.top_k)
            if self._shared.shortlist:
                state.candidates[number] = state.candidates[number].with_documents(new, scores, self._shared.shortlist)
        state.turns_done += 1

    def _rows(self, turn: int) -> range:
        """This process's share of the documents of a turn."""
        rank, count = self._shared.processes.rank, self._shared.processes.count
        start = turn * self._turn
        length = min(self._turn, len(self._corpus) - start)
        return range(start + length * rank // count, start + length * (rank + 1) // count)

    def _ranges(self, documents: Mapping[int, Tensor], rows: range) -> list[Tensor]:
        """What integers are spread over in all chunks alike: the ranges of the first, which processes may have shared."""
        own = max(0, min(len(rows), self._shared.corpus_chunk_size - rows.start))
        shares = self._shared.processes.everyones([ranges_of(group.kept(documents)[:own]) for group in self._groups if own])
        return [ranges_of(torch.cat(of_group)) for of_group in zip(*filter(None, shares), strict=True)]

    def _scores(self, documents: Mapping[int, Tensor], block: range, ranges: Sequence[Tensor]) -> Tensor:
        """Similarities (views, queries of the block, documents)."""
        scores: list[Tensor] = [torch.empty(0)] * len(self._shared.views)
        for group, queries, of_group in zip(self._groups, self._queries, ranges, strict=True):
            coordinates = group.documents(documents, of_group)
            of_block = queries[block.start : block.stop]
            by_dim = prefix_similarities(of_block, coordinates, group.dims, self._shared.similarity)
            for place, of_view in zip(group.places, by_dim, strict=True):
                scores[place] = of_view
        return torch.stack(scores)

    def _asked(self, block: range, ids: Sequence[str]) -> Tensor:
        """Which documents are to be ranked for which queries of the block."""
        top_ranked = self._wanted.top_ranked or {}
        wanted = [set(top_ranked.get(query, ())) for query in self._wanted.queries["id"][block.start : block.stop]]
        return torch.tensor([[document in of_query for document in ids] for of_query in wanted])


def _query_texts(wanted: Search, encode_kwargs: Mapping[str, Any]) -> list[str]:
    # mteb says how a query and its instruction, or the turns of a conversation, become one text
    loader = create_dataloader(
        wanted.queries, task_metadata=encode_kwargs["task_metadata"], prompt_type=PromptType.query, batch_size=32
    )
    return [text for batch in loader for text in batch["text"]]


def _document_texts(chunk: Mapping[str, Sequence[str]]) -> list[str]:
    """Title and text as one, as mteb joins them."""
    titles = chunk.get("title") or [""] * len(chunk["text"])
    return [f"{title} {text}".strip() if title else text.strip() for title, text in zip(titles, chunk["text"], strict=True)]


def _ids(corpus: CorpusDatasetType, rankings: Sequence[Rankings]) -> dict[int, str]:
    rows = sorted({row for block in rankings for row in block.rows.unique().tolist() if row >= 0})
    return dict(zip(rows, corpus.select(rows)["id"], strict=True))
