"""Does SMAE make a better backbone than plain masked language modelling?

    python benchmarks/smae_pretraining.py --data DATA

DATA holds `text/books_train.parquet` (text), `pairs/captions_train.parquet` and
`pairs/wikisplit_train.parquet` (anchor), `nli/pairs_train.parquet` (hypothesis),
`nli/triplets_train.parquet` (anchor, positive, negative) and `sts/<name>/test.parquet` (sentence1,
sentence2, score).

A small encoder is pre-trained once from scratch with plain masked language modelling; it takes the
place of BERT in Starbucks. Each seed continues from it for the same number of steps, in three ways:
SMAE, SMAE without its decoder, and plain masked language modelling. Each resulting encoder is
fine-tuned with `StarbucksLoss` over the same ladder, once with CLS and once with mean pooling, and
scored on the seven STS sets. Results are cached: delete `--out` to start over.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset
from measure import DATA
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import BertWordPieceTokenizer
from tokenizers.processors import BertProcessing
from transformers import (
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from st_matryoshka2d import evaluate, sizes_ladder, sts_task
from st_matryoshka2d.losses import StarbucksLoss
from st_matryoshka2d.pretraining import SMAEDataCollator, SMAEForPreTraining, SMAETrainer, token_rows

STS = ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
WAYS = ["smae", "smae without decoder", "mlm"]
LAYERS, WIDTH = 4, 128


def sentences(data: Path) -> list[str]:
    """Return distinct texts: prose, captions, and sentences from Wikipedia and NLI."""
    columns = {
        "text/books_train": "text",
        "pairs/captions_train": "anchor",
        "pairs/wikisplit_train": "anchor",
        "nli/pairs_train": "hypothesis",
    }
    return sorted({text for file, name in columns.items() for text in pd.read_parquet(data / f"{file}.parquet")[name]})


def tokenizer_of(texts: list[str], folder: Path, vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a WordPiece tokenizer on these texts."""
    file = folder / "tokenizer.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        trained = BertWordPieceTokenizer()
        trained.train_from_iterator(texts, vocab_size=vocabulary, show_progress=False)
        trained.post_processor = BertProcessing(*(("[SEP]", 3), ("[CLS]", 2)))
        trained.save(str(file))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_file=str(file), model_max_length=128, **special)


def from_scratch(tokenizer: PreTrainedTokenizerFast) -> ModernBertForMaskedLM:
    """Build a small ModernBERT: pre-norm and rotary positions need less text than BERT's design."""
    config = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=128,
        layer_types=["full_attention"] * LAYERS,
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=None,
        eos_token_id=None,
    )
    return ModernBertForMaskedLM(config)


def pretrain(
    way: str, start: Path | None, steps: int, seed: int, rows: Dataset, tokenizer: Any, options: argparse.Namespace
) -> Path:
    """Train an encoder with one method, from a folder or from scratch; return its folder."""
    folder: Path = options.out / (f"{way.replace(' ', '-')}-{seed}" if start else "start")
    if (folder / "seconds.json").exists():
        return folder
    set_seed(seed)
    mlm = ModernBertForMaskedLM.from_pretrained(start) if start else from_scratch(tokenizer)
    model = mlm if way == "mlm" else SMAEForPreTraining(mlm, mae=way == "smae")
    masked = SMAEDataCollator(tokenizer, seed=seed, max_length=options.tokens)
    arguments = TrainingArguments(
        output_dir=str(folder / "training"),
        max_steps=steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        weight_decay=0.05,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        seed=seed,
        dataloader_pin_memory=False,
    )

    def plainly(examples: list[Any]) -> dict[str, Any]:
        return {name: values for name, values in masked(examples).items() if not name.startswith("decoder")}

    cls, collator = (Trainer, plainly) if way == "mlm" else (SMAETrainer, masked)
    trainer = cls(model=model, args=arguments, train_dataset=rows, data_collator=collator)
    start_time = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start_time
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "log.json").write_text(json.dumps(trainer.state.log_history, indent=1), encoding="utf-8")
    (folder / "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")
    return folder


def score(encoder: Path, pooling: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Fine-tune on the ladder; return the mean score of the STS sets for each size."""
    file = encoder / f"{pooling}.json"
    if file.exists():
        known: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
        return known
    set_seed(seed)
    transformer = Transformer(str(encoder))
    model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), pooling)], device="cpu")
    triplets = Dataset.from_parquet(str(options.data / "nli" / "triplets_train.parquet"))
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(encoder / "training"),
        max_steps=options.fine_tuning_steps,
        per_device_train_batch_size=64,
        learning_rate=options.fine_tuning_learning_rate,
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        save_strategy="no",
        report_to="none",
        seed=seed,
        dataloader_pin_memory=False,
    )
    SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=triplets.select_columns(["anchor", "positive", "negative"]),
        loss=StarbucksLoss(model, MultipleNegativesRankingLoss(model), layers="first"),
    ).train()
    tasks = [sts_task(pd.read_parquet(options.data / "sts" / name / "test.parquet"), name=name) for name in STS]
    grid = evaluate(model, tasks, sizes=sizes_ladder(model), show_progress_bar=False)
    scores = {str(size): 100 * grid.score(size) for size in grid.sizes}
    file.write_text(json.dumps(scores, indent=1), encoding="utf-8")
    return scores


def report(scores: pd.DataFrame, seconds: dict[str, float], options: argparse.Namespace) -> str:
    """Format mean and standard deviation over seeds for each method and size."""
    rungs = [name for name in scores.columns if name not in ("way", "pooling", "seed")]
    scores["mean"] = scores[rungs].mean(axis=1)
    by_way = scores.groupby(["pooling", "way"], sort=False)[[*rungs, "mean"]]
    cells = by_way.mean().map("{:.1f}".format) + " ± " + by_way.std().map("{:.1f}".format)
    table = cells.reset_index()
    table["minutes"] = [f"{seconds[way] / 60:.1f}" for way in table["way"]]
    rows = [list(table.columns), ["---", "---", *["---:"] * (len(table.columns) - 2)], *table.to_numpy().tolist()]
    return "\n".join(
        [
            "# SMAE compared with plain masked language modelling",
            "",
            f"A ModernBERT of {LAYERS} layers x {WIDTH} is pre-trained for {options.first_steps} steps with masked language "
            f"modelling, then for {options.steps} steps with the method in column `way`, on batches of {options.batch_size} "
            f"texts of at most {options.tokens} tokens. It is then fine-tuned with `StarbucksLoss` for "
            f"{options.fine_tuning_steps} steps of 64 NLI triplets. Scores are the mean Spearman (%) of seven STS sets, "
            f"mean ± standard deviation over seeds {', '.join(map(str, options.seeds))}. `minutes` is the time of the "
            f"{options.steps} steps. Written by `benchmarks/smae_pretraining.py`.",
            "",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )


def main() -> None:
    """Train and score as the command line says, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--out", type=Path, default=Path("smae_pretraining"))
    parser.add_argument("--report", type=Path, default=Path(__file__).parent / "results" / "smae_pretraining" / "cpu.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--first-steps", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48, help="tokens per text; longer texts are cropped at random")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--fine-tuning-steps", type=int, default=100)
    parser.add_argument("--fine-tuning-learning-rate", type=float, default=5e-4)
    options = parser.parse_args()
    texts = sentences(options.data)
    tokenizer = tokenizer_of(texts[::10], options.out / "tokenizer", options.vocabulary)
    rows = token_rows(Dataset.from_dict({"text": texts}), tokenizer)
    start = pretrain("mlm", None, options.first_steps, 0, rows, tokenizer, options)
    found: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    for seed in options.seeds:
        for way in options.ways:
            encoder = pretrain(way, start, options.steps, seed + 1, rows, tokenizer, options)
            seconds[way] = json.loads((encoder / "seconds.json").read_text(encoding="utf-8"))
            for pooling in ("cls", "mean"):
                scores = score(encoder, pooling, seed, options)
                found.append({"way": way, "pooling": pooling, "seed": seed, **scores})
                print(way, pooling, seed, {size: round(value, 1) for size, value in scores.items()})
    text = report(pd.DataFrame(found), seconds, options)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
