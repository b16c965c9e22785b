"""Score readouts on embeddings that are there: STS at any size, and search by shallow queries on whole documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from sklearn.metrics import ndcg_score
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from aligned.embedded import STS, Embedded
from st_matryoshka2d.aligning.own_space import fit
from st_matryoshka2d.aligning.refine import Refinement
from st_matryoshka2d.aligning.ridge import Affine
from st_matryoshka2d.aligning.rotation import Rotation
from st_matryoshka2d.aligning.sample import Gathered
from st_matryoshka2d.sizes import Size

__all__ = ["Readouts", "SearchSet", "aligned", "search", "sts"]

Readouts = Mapping[int, Affine]
_STEPS = 100  # as `align` takes by default


def aligned(
    states: Tensor, copies: tuple[Tensor, Tensor], depths: Sequence[int], rotation: Rotation | None = None
) -> tuple[dict[int, Affine], dict[Size, float]]:
    """Fit the readouts of these depths as `align` does; return them and the agreement of each size."""
    refinement = Refinement((), _STEPS, torch.device("cpu"), None)
    gathered = {"": Gathered(states, copies)}
    result = fit(gathered, rotation, refinement, len(states), unit=True)
    agreement = {Size(depths[size.num_layers - 1], size.dim): value for size, value in result.agreement.items()}
    return {depth: result.readouts[""][place] for place, depth in enumerate(depths, start=1)}, agreement


def sts(embedded: Embedded, readouts: Readouts, size: Size, across: bool = False) -> float:
    """Return the mean Spearman (%) of the STS sets at a size; `across`, with the second texts at the full depth."""
    scores = []
    other = embedded.depths[-1] if across else size.num_layers
    for name in STS:
        one, two, gold = embedded.pairs(name)
        left = readouts[size.num_layers](one[:, embedded.depths.index(size.num_layers)])[:, : size.dim]
        right = readouts[other](two[:, embedded.depths.index(other)])[:, : size.dim]
        scores.append(100 * spearmanr(cosine_similarity(left, right).numpy(), gold.numpy())[0])
    return float(np.mean(scores))


class SearchSet:
    """Documents, queries that have relevant documents, and these."""

    def __init__(self, data: Path, name: str) -> None:
        corpus, queries, qrels = (
            pd.read_parquet(data / "retrieval" / name / f"{part}.parquet") for part in ("corpus", "queries", "qrels")
        )
        places = {str(each): place for place, each in enumerate(corpus["id"])}
        found = qrels[qrels["score"] > 0].astype({"query_id": str, "corpus_id": str})
        asked = queries[queries["id"].astype(str).isin(found["query_id"])]
        self.name, self.queries = name, list(asked["text"])
        self.documents = [" ".join(both).strip() for both in zip(corpus["title"].fillna(""), corpus["text"], strict=True)]
        rows = {each: row for row, each in enumerate(asked["id"].astype(str))}
        self.relevance = np.zeros((len(asked), len(corpus)))
        self.relevance[found["query_id"].map(rows), found["corpus_id"].map(places)] = found["score"]


def search(embedded: Embedded, readouts: Readouts, of: SearchSet, size: Size) -> float:
    """Return nDCG@10 (%) of queries at a size on documents at the full depth, by as many dims."""
    full = readouts[embedded.depths[-1]](embedded.documents(of.name, of.documents))
    asked = embedded.queries(of.name, of.queries)[:, embedded.depths.index(size.num_layers)]
    left, right = (normalize(rows[:, : size.dim]) for rows in (readouts[size.num_layers](asked), full))
    return 100 * float(ndcg_score(of.relevance, (left @ right.T).numpy(), k=10))
