"""Saved state of a search: exact round trips, and files of other searches are ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from st_matryoshka2d.evaluation.search import SearchState

BLOCKS, VIEWS, TOP, DOCUMENTS = [3, 2], 4, 5, 40


def found(scores: list[Tensor], documents: range) -> SearchState:
    """Return a search's state after some documents, given scores (views, queries, all documents) of each block."""
    state = SearchState.begin(None, "", BLOCKS, VIEWS)
    for number, of_block in enumerate(scores):
        rows = torch.arange(documents.start, documents.stop, dtype=torch.int32).expand(BLOCKS[number], -1)
        part = of_block[:, :, documents.start : documents.stop]
        state.blocks[number] = state.blocks[number].with_documents(rows, part, TOP)
    state.ranges = [torch.randn(2, 6), torch.randn(2, 3)]
    state.chunks = 7
    return state


def random_scores() -> list[Tensor]:
    return [torch.randn(VIEWS, queries, DOCUMENTS) for queries in BLOCKS]


def tensors(state: SearchState) -> list[Tensor]:
    return [part for block in state.blocks for part in (block.rows, block.scores)] + state.ranges


def assert_same(one: SearchState, other: SearchState) -> None:
    assert one.chunks == other.chunks
    for left, right in zip(tensors(one), tensors(other), strict=True):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)


@pytest.mark.parametrize("documents", [range(0), range(3), range(DOCUMENTS)])
def test_state_round_trip(tmp_path: Path, documents: range) -> None:
    state, file = found(random_scores(), documents), tmp_path / "deeper" / "search.safetensors"
    state.save(file, "this search")
    state.save(file, "this search")
    assert_same(SearchState.begin(file, "this search", BLOCKS, VIEWS), state)
    assert list(file.parent.iterdir()) == [file]


def test_other_search_starts_from_scratch(tmp_path: Path) -> None:
    file = tmp_path / "search.safetensors"
    found(random_scores(), range(9)).save(file, "another search")
    state = SearchState.begin(file, "this search", BLOCKS, VIEWS)
    assert_same(state, SearchState.begin(None, "this search", BLOCKS, VIEWS))
    assert (state.chunks, state.ranges, file.exists()) == (0, [], False)


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found(random_scores(), range(9)).save(None, "this search")
    assert list(tmp_path.iterdir()) == []


def test_loaded_state_can_be_updated(tmp_path: Path) -> None:
    """The tensors are not memory-mapped, because the file is replaced while they are in use."""
    scores, file = random_scores(), tmp_path / "search.safetensors"
    found(scores, range(11)).save(file, "this search")
    state = SearchState.begin(file, "this search", BLOCKS, VIEWS)
    before = [tensor.clone() for tensor in tensors(state)]
    found(random_scores(), range(11)).save(file, "this search")
    file.write_bytes(b"")
    assert all(torch.equal(left, right) for left, right in zip(tensors(state), before, strict=True))
