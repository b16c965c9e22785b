"""The training budget of every method: the same texts, steps and seeds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from datasets import Dataset

__all__ = ["budget", "nli", "unlabelled"]


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


def unlabelled(seed: int, options: argparse.Namespace, texts: int = 10_000) -> list[str]:
    """Return texts of the triplets, without labels."""
    triplets = nli(options).shuffle(seed=seed)
    return [*triplets["anchor"][: texts // 2], *triplets["positive"][: texts // 2]]
