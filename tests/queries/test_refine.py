"""The refinement of a token table: against a loop over queries, and what it does to the ranks of documents."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import Tensor

from st_matryoshka2d.queries import refine as module
from st_matryoshka2d.queries.refine import refined

DRAW = np.random.default_rng(0)
TOKENS, DIM = 40, 8
TRUE_TABLE = DRAW.normal(size=(TOKENS, DIM))
QUERIES = [DRAW.integers(0, TOKENS - 1, DRAW.integers(1, 6)).tolist() for _ in range(1200)]  # never the last token
MEAN = DRAW.normal(size=DIM).astype(np.float32)
TRUE = np.stack([TRUE_TABLE[query].mean(0) for query in QUERIES]).astype(np.float32) + MEAN
DOCUMENTS = DRAW.normal(size=(60, DIM)).astype(np.float32)
START = (TRUE_TABLE + 0.5 * DRAW.normal(size=(TOKENS, DIM))).astype(np.float32)


def unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def loss_by_a_loop(table: Tensor, queries: list[int], temperature: float) -> Tensor:
    stored, losses = torch.from_numpy(unit(DOCUMENTS)), []
    for place in queries:
        made = sum((table[token] for token in QUERIES[place]), start=torch.zeros(DIM)) / len(QUERIES[place])
        asked = torch.from_numpy(TRUE[place])
        ours = torch.log_softmax(torch.stack([made @ row for row in stored]) / made.norm() / temperature, 0)
        theirs = torch.log_softmax(torch.stack([asked @ row for row in stored]) / asked.norm() / temperature, 0)
        aimed = asked - torch.from_numpy(MEAN)
        losses.append((theirs.exp() * (theirs - ours)).sum() + 1 - made @ aimed / made.norm() / aimed.norm())
    return torch.stack(losses).mean()


def test_a_step_goes_down_the_gradient_of_the_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS", 1)
    after = refined(START, QUERIES, TRUE, DOCUMENTS, MEAN, True)
    batch = torch.randperm(len(QUERIES), generator=torch.Generator().manual_seed(0))[:512].tolist()
    temperature = 0.5 * (unit(TRUE[:512]) @ unit(DOCUMENTS).T).std(1, ddof=1).mean()
    table = torch.tensor(START, requires_grad=True)
    loss_by_a_loop(table, batch, float(temperature)).backward()
    assert table.grad is not None
    clear = table.grad.abs().numpy() > 1e-5
    # Adam's first step is as long in every coordinate.
    expected = START - 0.01 * np.sqrt(np.square(START).mean()) * np.sign(table.grad.numpy())
    np.testing.assert_allclose(after[clear], expected[clear], atol=1e-4)
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(after[-1], START[-1], "no query has this token")


def test_ranks_documents_as_the_whole_model() -> None:
    def divergence(table: np.ndarray) -> float:
        made = unit(np.stack([table[query].mean(0) for query in QUERIES]))
        ours, theirs = (log_softmax(rows @ unit(DOCUMENTS).T / 0.2, axis=1) for rows in (made, unit(TRUE)))
        return float((np.exp(theirs) * (theirs - ours)).sum(1).mean())

    with torch.no_grad():  # as callers may have it
        after = refined(START, QUERIES, TRUE, DOCUMENTS, MEAN, True)
    assert divergence(after) < 0.5 * divergence(START)
    np.testing.assert_array_equal(after, refined(START, QUERIES, TRUE, DOCUMENTS, MEAN, True), "and the same each time")


def test_few_queries_change_nothing() -> None:
    assert refined(START, QUERIES[:999], TRUE[:999], DOCUMENTS, MEAN, True) is START
