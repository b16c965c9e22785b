"""Refine a token table by gradient descent, so that queries rank documents as the whole model ranks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from st_matryoshka2d.encoding.progress import progress

if TYPE_CHECKING:
    from jaxtyping import Float

_STEPS, _BATCH, _RANKED = 200, 512, 2048  # queries and documents of a step
_FEWEST = 1000  # queries that it takes
_RATE = 0.01  # of Adam, in units of the rows
_TEMPERATURE = 0.5  # in standard deviations of a query's scores


@torch.enable_grad()
def refined(
    table: Float[np.ndarray, "tokens dim"],
    queries: Sequence[Sequence[int]],
    true: Float[np.ndarray, "queries dim"],
    documents: Float[np.ndarray, "documents dim"],
    mean: Float[np.ndarray, " dim"],
    hidden: bool | None,
) -> Float[np.ndarray, "tokens dim"]:
    r"""Take some steps down the divergence of ranks, and the distance to the queries' own embeddings.

    .. math:: \mathrm{KL}(\mathrm{softmax}(\hat q D^T / \tau);\, \mathrm{softmax}(q D^T / \tau))
        + 1 - \cos(\hat q, q - \bar q)

    with q a query by the whole model, :math:`\hat q` by the table, of unit length, and D documents
    by the whole model, drawn anew at each step.
    """
    if len(queries) < _FEWEST:
        return table
    asked, stored = (F.normalize(torch.from_numpy(rows.astype(np.float32))) for rows in (true, documents))
    aimed = torch.from_numpy((true - mean).astype(np.float32))
    temperature = _TEMPERATURE * float((asked[:_BATCH] @ stored[:_RANKED].T).std(1).mean())
    rows = nn.Parameter(torch.tensor(table))
    optimizer = torch.optim.Adam([rows], lr=_RATE * float(rows.detach().square().mean().sqrt()))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, _STEPS)
    draw = torch.Generator().manual_seed(0)
    with progress("Refining the table", _STEPS, "steps", hidden) as bar:
        for _ in range(_STEPS):
            batch = torch.randperm(len(queries), generator=draw)[:_BATCH]
            ranked = stored[torch.randperm(len(stored), generator=draw)[:_RANKED]]
            made = _pooled(rows, [queries[place] for place in batch.tolist()])
            ours, theirs = (F.log_softmax(F.normalize(each) @ ranked.T / temperature, 1) for each in (made, asked[batch]))
            loss = F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
            loss = loss + 1 - F.cosine_similarity(made, aimed[batch]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.update()
    return np.asarray(rows.detach().numpy())


def _pooled(rows: Tensor, texts: Sequence[Sequence[int]]) -> Tensor:
    """Average the rows of each text."""
    tokens = torch.tensor([token for text in texts for token in text], dtype=torch.int64)
    starts = torch.tensor([0, *np.cumsum([len(text) for text in texts])[:-1]])
    return F.embedding_bag(tokens, rows, starts, mode="mean")
