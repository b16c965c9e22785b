"""The training budget of every method: the same texts, steps and seeds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset

__all__ = ["budget", "labelled", "nli", "twice", "unlabelled"]


def budget(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the training arguments that all methods share."""
    return {
        "max_steps": options.steps,
        "per_device_train_batch_size": options.batch_size,
        "seed": seed,
        "bf16": options.bf16,
        "use_cpu": options.device == "cpu",
        "save_strategy": "no",
        "report_to": "none",
        "dataloader_pin_memory": False,
    }


def nli(options: argparse.Namespace) -> Dataset:
    """Read the NLI triplets."""
    triplets = Dataset.from_parquet(str(Path(options.data) / "nli" / "triplets_train.parquet"))
    return triplets.select_columns(["anchor", "positive", "negative"])


def labelled(options: argparse.Namespace) -> Dataset:
    """Read the NLI pairs, with label 1 for entailment and 0 for contradiction; others are left out, as in AnglE's code."""
    pairs = pd.read_parquet(Path(options.data) / "nli" / "pairs_train.parquet")
    pairs = pairs.assign(label=pairs["label"].map({"entailment": 1.0, "contradiction": 0.0})).dropna(subset="label")
    return Dataset.from_pandas(pairs[["premise", "hypothesis", "label"]], preserve_index=False)


def twice(seed: int, options: argparse.Namespace) -> Dataset:
    """Return pairs of a text with itself, without labels."""
    texts = list(dict.fromkeys(unlabelled(seed, options)))
    return Dataset.from_dict({"anchor": texts, "positive": texts})


def unlabelled(seed: int, options: argparse.Namespace, texts: int = 10_000) -> list[str]:
    """Return texts of the triplets, without labels."""
    triplets = nli(options).shuffle(seed=seed)
    return [*triplets["anchor"][: texts // 2], *triplets["positive"][: texts // 2]]
