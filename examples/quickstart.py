"""Align and train one sentence-embedding model for every size, score each size, and ship a small one.

    python examples/quickstart.py

The model is all-MiniLM-L6-v2 with 6 layers x 384 dimensions. It is good at full size and worse when cut, since it was not
trained for that. Without the Hugging Face Hub, the same weights come from a package and the data from _demo/data.py. Results
go to `quickstart/`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

from _demo import start as demo_start

parser = argparse.ArgumentParser(description="Train, score and cut a model of every size.")
parser.add_argument("--steps", type=int, default=60, help="training steps, of 32 triplets each (default: 60)")
parser.add_argument("--offline", action="store_true", help="do not use the Hugging Face Hub")
parser.add_argument("--smoke", action="store_true", help="a quick check, offline: two steps, few pairs")
options = parser.parse_args()
out, smoke, steps = Path("quickstart"), options.smoke, 2 if options.smoke else options.steps
began = time.perf_counter()
print(f"""This cuts all-MiniLM-L6-v2 in depth and width, makes the small sizes better,
and saves one in {out}/. On two free cores it takes:
  1. load the libraries and the model, score all sizes        half a minute
  2. align: fit a matrix to each depth, on raw text           half a minute
  3. train {steps} steps, in which the model teaches its sizes     two minutes
  4. align again                                              half a minute
  5. score again, cut, save, and time the cut                 half a minute""")


def step(number: int, what: str) -> None:
    """Say which step begins, and when."""
    print(f"\n{number}. {what} ({(time.perf_counter() - began) / 60:.1f} minutes so far)", flush=True)


step(1, "Load the model, and score all sizes as they are: their first and last layers")
online = demo_start.hub_in_reach(wanted=not (options.offline or smoke))
warnings.filterwarnings("ignore", module="mteb")  # mteb warns about newer versions of its tasks

import numpy as np
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import align, benchmark_latency, evaluate, sizes_ladder, truncate
from st_matryoshka2d.losses import RelationalDistillLoss

model, triplets, task = demo_start.start(online, pairs=70 if smoke else 1000)

# Score each size as it is: its first and last layers.
dims = [32, 64, 128, 384]
before = evaluate(model, task, dims=dims)
print(before)

# Give every depth a readout into the space of the whole model, from raw text. It keeps the same layers.
step(2, "Align")
texts = [*triplets["anchor"][:2000], *triplets["positive"][:2000]]
model = align(model, texts, show_progress_bar=True)

# Train a ladder of sizes in every step: a frozen copy of the model teaches all sizes, the labels teach the full size.
step(3, f"Train the sizes {', '.join(map(str, sizes_ladder(model)))}")
loss = RelationalDistillLoss(model, loss=MultipleNegativesRankingLoss(model))
arguments = SentenceTransformerTrainingArguments(
    output_dir=str(out / "training"),
    max_steps=steps,
    per_device_train_batch_size=32,
    batch_sampler="no_duplicates",
    learning_rate=1e-4,
    warmup_steps=0.1,
    logging_steps=20,
    save_strategy="no",
    report_to="none",
    dataloader_pin_memory=False,
)
SentenceTransformerTrainer(model=model, args=arguments, train_dataset=triplets, loss=loss).train()
step(4, "Align again")
model = align(model, texts, show_progress_bar=True)  # training made the readouts less accurate

step(5, "Score all sizes again, and cut one")
after = evaluate(model, task, dims=dims)
after.plot(out / "grid.png", title=f"{after.tasks[0]} aligned, {steps} steps, aligned")
print(f"{after}\n\n{after.named('after').compare(before.named('before'))}")

# Cut the size to ship. The result is a plain checkpoint, which loads without this package.
cut = truncate(model, num_layers=3, dim=64)
cut.save_pretrained(str(out / "cut-3L-64d"))
difference = np.abs(SentenceTransformer(str(out / "cut-3L-64d")).encode(texts[:10]) - cut.encode(texts[:10])).max()
was, now, full = before.score("3L-64d"), after.score("3L-64d"), after.score("6L-384d")
speed = benchmark_latency(model, num_layers=3, rounds=10).set_index("num_layers")["speedup"]
print(f"""
The cut in {out / "cut-3L-64d"}, loaded with plain sentence-transformers
  keeps      {now / full:.0%} of the full size's score; {was / before.score("6L-384d"):.0%} before it was aligned and trained
  score      {100 * now:.1f}, {100 * was:.1f} before; the full size has {100 * full:.1f}
  speed      {speed[3]:.1f} times as fast as the full model, with vectors a sixth as wide
  reloaded   its embeddings differ from the cut's by {difference:.0e} at most
A heat map of all scores is in {out / "grid.png"}. It took {(time.perf_counter() - began) / 60:.1f} minutes.""")
