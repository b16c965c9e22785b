"""An index of fewer bytes on two public tasks: first dims, components, int8, bits, and bits with rescoring of fifty.

    python benchmarks/index_bytes.py --data DATA
    python benchmarks/index_bytes.py --data DATA --model FOLDER

The whole model embeds queries and documents, once, into `--cache`, which is that of
`leaderboard.py`. Components and ranges are fitted on the documents.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from leaderboard import arguments
from measure import markdown
from public.cuts import components
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, Rows, unit
from scipy.linalg import orthogonal_procrustes

RESULTS = Path(__file__).parent / "results" / "index_bytes"
RESCORED = 50
_ROUNDS = 50  # of iterative quantization, as its authors take
Way = Callable[[Rows, Rows, int], Rows]  # documents, queries and bytes of a vector to scores (queries, documents)
WIDTHS: dict[str, Callable[[Rows, int], Callable[[Rows], Rows]]] = {
    "first dims": lambda _, dim: lambda rows: rows[:, :dim],
    "components": components,
}


def int8(rows: Rows) -> Rows:
    """Round each coordinate to one of 256 steps between its least and its greatest value."""
    low, high = rows.min(0), rows.max(0)
    step = (high - low).clip(1e-12) / 255
    return np.asarray(low + np.round((rows - low) / step) * step)


def turn(rows: Rows) -> Rows:
    """Return the rotation whose signs lose least: iterative quantization, Gong and Lazebnik, CVPR 2011."""
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(rows.shape[1],) * 2))[0]
    for _ in range(_ROUNDS):
        rotation, _ = orthogonal_procrustes(rows, np.sign(rows @ rotation))
    return np.asarray(rotation)


def narrow(way: str) -> Way:
    """Keep as many dims as float32 numbers have room."""

    def scores(documents: Rows, queries: Rows, size: int) -> Rows:
        made = WIDTHS[way](documents, size // 4)
        return np.asarray(unit(made(queries)) @ unit(made(documents)).T)

    return scores


def bytewise(way: str) -> Way:
    """Keep a dim for each byte."""

    def scores(documents: Rows, queries: Rows, size: int) -> Rows:
        made = WIDTHS[way](documents, min(size, documents.shape[1]))
        return np.asarray(unit(made(queries)) @ unit(int8(unit(made(documents)))).T)

    return scores


def bits(way: str, rotated: bool = False) -> Way:
    """Keep a sign for each bit, of coordinates without their mean; queries stay float32."""

    def scores(documents: Rows, queries: Rows, size: int) -> Rows:
        made = WIDTHS[way](documents, min(8 * size, documents.shape[1]))
        stored, asked = unit(made(documents)), unit(made(queries))
        stored, asked = stored - stored.mean(0), asked - stored.mean(0)
        if rotated:
            turned = turn(stored)
            stored, asked = stored @ turned, asked @ turned
        return np.asarray(asked @ np.where(stored > 0, 1, -1).T)

    return scores


def rescored(by: Way) -> Way:
    """Score the best fifty of another way again, by int8 of all dims."""

    def scores(documents: Rows, queries: Rows, size: int) -> Rows:
        first = by(documents, queries, size)
        best = np.argpartition(-first, RESCORED, axis=1)[:, :RESCORED]
        exact = bytewise("first dims")(documents, queries, documents.shape[1])
        found = np.asarray(first - first.max() - 2)  # below every cosine
        np.put_along_axis(found, best, np.take_along_axis(exact, best, axis=1), axis=1)
        return found

    return scores


WAYS: dict[str, Way] = {
    "first dims, float32": narrow("first dims"),
    "components, float32": narrow("components"),
    "first dims, int8": bytewise("first dims"),
    "components, int8": bytewise("components"),
    "first dims, bits": bits("first dims"),
    "all dims rotated, bits": bits("first dims", rotated=True),
    "components, bits": bits("components"),
    f"first dims, bits, {RESCORED} rescored by int8": rescored(bits("first dims")),
}


def sizes(way: str, dim: int) -> list[int]:
    """Return the bytes of a vector that a way can have: the widest, and halves of it."""
    widest = dim // 8 if "bits" in way else dim if "int8" in way else 4 * dim
    kept = [widest // part for part in (1, 2, 4, 8, 16, 32)]
    return kept[:1] if "rotated" in way else [size for size in kept if dim // 32 <= size]


def main() -> None:
    """Score every way at every size, and write the tables."""
    options = arguments(__doc__, RESULTS)
    model = Remembering(options.model, options.cache)
    rows = []
    for name in options.sets:
        of = PublicSet(options.data, name)
        documents, queries = unit(model.encode_document(of.documents)), unit(model.encode_query(of.queries))
        whole = of.search(queries, documents).mean()
        for way, scores in WAYS.items():
            for size in sizes(way, documents.shape[1]):
                found = of.ndcg(scores(documents, queries, size)).mean()
                rows.append((name, way, size, round(found, 3), round(100 * found / whole, 2)))
                print(*rows[-1], flush=True)
    table = pd.DataFrame(rows, columns=["set", "way", "bytes", "ndcg", "kept"])
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / f"{model.name}.csv", index=False)
    about = (
        "Share (%) of the whole model's nDCG@10 by bytes of a vector in memory. Components are fitted on the documents. "
        f"Bits are searched by float32 queries; rescoring reads {RESCORED} int8 vectors of a query from elsewhere. "
        "Written by `benchmarks/index_bytes.py`."
    )
    report = [f"# {model.name}: bytes of a vector", about]
    for name, of_set in table.groupby("set", sort=False):
        wide = (
            of_set.pivot(index="way", columns="bytes", values="kept").reindex(list(WAYS)).sort_index(axis=1, ascending=False)
        )
        cells = [[str(way), *("" if np.isnan(one) else f"{one:.1f}" for one in row)] for way, row in wide.T.items()]
        report += [f"## {TASKS[str(name)]}", "\n".join(markdown([["", *(f"{size:,}" for size in wide)], *cells]))]
    (options.out / f"{model.name}.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
