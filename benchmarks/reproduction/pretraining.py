"""SMAE before fine-tuning: the same number of steps, on the same texts without their labels."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from transformers import AutoTokenizer, TrainingArguments

from reproduction.budget import budget, unlabelled
from st_matryoshka2d.pretraining import SMAEDataCollator, SMAEForPreTraining, SMAETrainer, token_rows

__all__ = ["pretrained"]


def pretrained(seed: int, options: argparse.Namespace, folder: Path) -> tuple[SentenceTransformer, float]:
    """Pre-train the starting model's encoder as in Starbucks' section 4.1; return the model and the seconds it took.

    Args:
        seed: Seed of the training.
        options: Those of the command line.
        folder: Where the encoder is saved; runs side by side need folders of their own.
    """
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    backbone = SMAEForPreTraining.from_pretrained(options.model)
    arguments = TrainingArguments(
        output_dir=str(folder),
        learning_rate=1e-4,
        weight_decay=0.05,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        **budget(seed, options),
    )
    rows = token_rows(Dataset.from_dict({"text": unlabelled(seed, options)}), tokenizer)
    begin = time.perf_counter()
    SMAETrainer(backbone, arguments, SMAEDataCollator(tokenizer, seed=seed), rows).train()
    seconds = time.perf_counter() - begin
    backbone.save_pretrained(str(folder))
    model = SentenceTransformer(options.model, device=options.device)
    model[0] = Transformer(str(folder), max_seq_length=model.max_seq_length)
    return model.to(options.device), seconds
