"""Align and train one sentence-embedding model for every size, score each size, and ship a small one.

    python examples/quickstart.py

The model is all-MiniLM-L6-v2. Without the Hugging Face Hub, the same weights come from a package and the data from
_demo/data.py. Results go to `quickstart/`.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from _demo import start as demo_start

parser = argparse.ArgumentParser(description="Train, score and cut a model of every size.")
parser.add_argument("--steps", type=int, default=60, help="training steps, of 32 triplets each (default: 60)")
parser.add_argument("--offline", action="store_true", help="do not use the Hugging Face Hub")
parser.add_argument("--smoke", action="store_true", help="a quick check, offline: two steps, few pairs")
options = parser.parse_args()
out, smoke, steps = Path("quickstart"), options.smoke, 2 if options.smoke else options.steps
step = demo_start.Steps(out, steps)
step()
online = demo_start.hub_in_reach(wanted=not (options.offline or smoke))
warnings.filterwarnings("ignore", module="mteb")  # mteb warns about newer versions of its tasks

import numpy as np
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import align, benchmark_latency, evaluate, truncate
from st_matryoshka2d.losses import RelationalDistillLoss

model, triplets, task = demo_start.start(online, pairs=70 if smoke else 1000)
dims = [32, 64, 128, 384]
before = evaluate(model, task, dims=dims)
print(before)

# Give every depth a readout into the space of the whole model, from raw text. It keeps the same layers.
step()
texts = [*triplets["anchor"][:2000], *triplets["positive"][:2000]]
model = align(model, texts, show_progress_bar=True)

# Train a ladder of sizes in every step: a frozen copy of the model teaches all sizes, the labels teach the full size.
step()
loss = RelationalDistillLoss(model, loss=MultipleNegativesRankingLoss(model))
arguments = SentenceTransformerTrainingArguments(
    str(out / "training"),
    max_steps=steps,
    per_device_train_batch_size=32,
    batch_sampler="no_duplicates",
    learning_rate=1e-4,
    warmup_steps=0.1,
    logging_steps=20,
    save_strategy="no",
    report_to="none",
)
SentenceTransformerTrainer(model=model, args=arguments, train_dataset=triplets, loss=loss).train()
step()
model = align(model, texts, show_progress_bar=True)  # training made the readouts less accurate

step()
after = evaluate(model, task, dims=dims)
after.plot(out / "grid.png", title=f"{after.tasks[0]} aligned, {steps} steps, aligned")
print(f"{after}\n\n{after.named('after').compare(before.named('before'))}")

# Cut the size to ship. The result is a plain checkpoint, which loads without this package.
cut = truncate(model, num_layers=3, dim=64)
cut.save_pretrained(str(out / "cut-3L-64d"))
difference = np.abs(SentenceTransformer(str(out / "cut-3L-64d")).encode(texts[:10]) - cut.encode(texts[:10])).max()
(was, whole), (now, full) = ([grid.score(size) for size in ("3L-64d", "6L-384d")] for grid in (before, after))
speed = benchmark_latency(model, num_layers=3, rounds=10).set_index("num_layers")["speedup"]
print(f"""
The cut in {out / "cut-3L-64d"}, loaded with plain sentence-transformers
  keeps      {now / full:.0%} of the full size's score, {100 * full:.1f}; it kept {was / whole:.0%}
  speed      {speed[3]:.1f} times as fast as the full model, with vectors a sixth as wide
  reloaded   its embeddings differ from the cut's by {difference:.0e} at most
A heat map of all scores is in {out / "grid.png"}. It took {step.minutes:.1f} minutes.""")
