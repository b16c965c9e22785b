"""What a token table keeps of search when its file is small: numbers of fewer bits, fewer tokens, fewer dims.

    python benchmarks/small_tables.py --data DATA

One table is fitted to the documents of two public tasks, as `fit_queries` does by default. `--cache`
is that of `leaderboard.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from leaderboard import arguments
from measure import markdown
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, Rows
from tokenizers import Tokenizer

from st_matryoshka2d import TokenTable, fit_queries, truncate
from st_matryoshka2d.vocabulary.shrink import Vocabulary

RESULTS = Path(__file__).parent / "results" / "small_tables"
DIMS = [128, 64]


def fitted(model: Remembering, sets: Sequence[PublicSet]) -> TokenTable:
    """Fit a table to all documents."""
    texts = list(dict.fromkeys(text for each in sets for text in each.documents))
    table = fit_queries(model, texts, embeddings=model.encode_document(texts), show_progress_bar=True)
    with TemporaryDirectory() as folder:
        truncate(table, num_layers=0).save_pretrained(folder)
        return TokenTable.load(folder)  # its rows are mapped, and stay readable


def scores(tokenizer: Tokenizer, rows: Rows, sets: Sequence[PublicSet], model: Remembering) -> list[float]:
    """Return nDCG@10 (%) on each set, of documents by as many dims."""
    found = []
    for each in sets:
        ids = [text.ids for text in tokenizer.encode_batch(each.queries, add_special_tokens=False)]
        asked = np.stack([rows[of_one].mean(0) if of_one else np.zeros(rows.shape[1]) for of_one in ids])
        index = model.encode_document(each.documents)[:, : rows.shape[1]]
        found.append(float(each.search(asked, index).mean()))
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
    options = arguments(__doc__, RESULTS)
    model = Remembering(options.model, options.cache)
    sets = [PublicSet(options.data, name) for name in options.sets]
    table = fitted(model, sets)
    whole = [
        float(each.search(model.encode_query(each.queries), model.encode_document(each.documents)).mean()) for each in sets
    ]
    texts = [text for each in sets for text in each.documents]
    occur = {token for text in table.tokenizer.encode_batch_fast(texts, add_special_tokens=False) for token in text.ids}
    few = Vocabulary(table.tokenizer).shrunk(occur)
    full = np.array(table.rows, np.float32)
    rows = [["table", "tokens", "MB", *(TASKS[each.name] for each in sets), "kept, %"]]

    def row(title: str, tokenizer: Tokenizer | None, size: int, found: Sequence[float], tokens: str) -> None:
        written = 0 if tokenizer is None else len(tokenizer.to_str(pretty=True).encode())
        share = 100 * float(np.mean(np.divide(found, whole)))
        figures = [f"{score:.1f}" for score in [*found, share]]
        rows.append([title, tokens, f"{(size + written) / 1e6:.1f}" if size else "", *figures])
        print(" | ".join(rows[-1]), flush=True)

    row("none: all layers", None, 0, whole, "")
    for tokenizer, kept in ((table.tokenizer, np.arange(len(full))), (few.tokenizer, np.array(few.former))):
        for dim in (full.shape[1], *DIMS):
            part = np.ascontiguousarray(full[kept, :dim])
            for kind, (rounded, size) in {
                "float32": (part, 4 * part.size),
                "float16": in_float16(part),
                "int8": in_int8(part),
            }.items():
                row(f"{kind}, {dim} dims", tokenizer, size, scores(tokenizer, rounded, sets, model), f"{len(kept):,}")
    report = [
        f"# {model.name}: small token tables",
        "nDCG@10 (%) on documents by all layers and as many dims, and the mean share of the whole model's. One table for "
        f"{len(set(texts)):,} documents; the fewer tokens are those of the documents, and single characters. MB are those "
        "of rows and tokenizer; int8 has a scale for each row, and is computed in NumPy: sentence-transformers does not "
        "load it. Written by `benchmarks/small_tables.py`.",
        "\n".join(markdown(rows)),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{model.name}.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
