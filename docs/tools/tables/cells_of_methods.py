"""The cells of the tables on methods: those of the papers, and losses."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd
from reports import RESULTS, Cells, reported

__all__ = ["MINILM", "MPNET", "kept", "layers_trained", "papers", "steps"]

# The scores of a model: most methods, aligned models with their last layers, MIPIC at its paper's
# learning rate.
MINILM = ["reproduce/100x64", "reproduce/100x64-ends", "reproduce/100x64-2e-05"]
MPNET = [f"reproduce/all-mpnet-base-v2-100x32{kind}" for kind in ("", "-ends", "-2e-05")]
RECIPE = "aligned, distillation with labels, aligned"
METHODS = {
    "first layers, not trained": "cut",
    "first and last layers, not trained": "first and last layers",
    "full size trained, then cut": "full size",
    "six models": "separate",
    "six models, all dims trained": "separate, all dims trained",
    **{name: name for name in ("MRL", "2DMSE", "Espresso", "Starbucks")},
    "SMAE, then Starbucks": "SMAE, Starbucks",
    "MIPIC": "MIPIC",
    "distillation, no labels": "distillation",
    "aligned, not trained": "cut, aligned",
    "recipe": RECIPE,
}
LOSSES = {
    ("`StarbucksLoss`, 6 sizes", "MultipleNegativesRanking"): ("starbucks", "mnrl"),
    ("`StarbucksLoss`, 6 sizes", "Matryoshka2dLoss, all layers and dims"): ("starbucks", "st-2d"),
    ("`TwoDMSELoss`", "MultipleNegativesRanking"): ("2dmse", "mnrl"),
    ("`EspressoLoss`", "MultipleNegativesRanking"): ("espresso", "mnrl"),
    ("`MIPICLoss`", "MatryoshkaLoss, the same dims"): ("mipic", "st-mrl"),
    ("`RelationalDistillLoss`", "MultipleNegativesRanking"): ("distill", "mnrl"),
    ("`StarbucksLoss(mini_batch_size=32)`", "MultipleNegativesRanking"): ("starbucks-cached", "mnrl"),
}


def papers() -> Cells:
    """Return the mean over the ladder and the full size, on two models and in the papers."""
    rows = [["", *(f"{where}, {what}" for where in ("MiniLM", "MPNet", "paper") for what in ("mean", "full"))]]
    minilm, mpnet = (
        [reported(f"{folder}/README.md", f"{suite}: by size, mean of the tasks") for folder in folders]
        for suite, folders in (("sts", MINILM), ("ladder", MPNET))
    )
    for shown, method in METHODS.items():
        paper = minilm[0].get(f"*{method}: paper*", [""] * 7)
        cells = (found(minilm, method), found(mpnet, method), paper)
        rows.append([shown, *(row[place] for row in cells for place in (6, 5))])
    return rows


def found(reports: Sequence[dict[str, list[str]]], method: str) -> list[str]:
    """Return a method's row from the report that has it."""
    most, ends, slow = reports
    if method == "MIPIC":
        return slow[method]
    # not all were measured on both models
    return (ends if "aligned" in method or method not in most else most).get(method, [""] * 7)


def layers_trained(model: str = "all-MiniLM-L6-v2") -> Cells:
    """Return scores before and after training by the layers that it keeps: by size, and the mean over the ladder."""
    known = json.loads((RESULTS / "layers_trained" / f"{model}.json").read_text(encoding="utf-8"))
    runs = {name: found for name, found in known.items() if not name.startswith("seconds")}
    sizes = list(next(iter(runs.values()))["stsb"])
    layers, dims = sizes[-1].split("L-")
    half = f"{int(layers) // 2}L-{dims}"
    small = next(size for size in sizes if size.startswith(f"{int(layers) // 2}L-"))
    of_tasks = {"stsb": [small, half, sizes[-1]], "quora": [small], "MLQuestions": [small, half]}
    titles = {"stsb": "STS-B", "quora": "Quora"}
    rows = [["", *(f"{titles.get(task, task)}, {size}" for task in of_tasks for size in [*of_tasks[task], "ladder"])]]
    for name in sorted(runs, key=_by_loss):
        row = [name.rpartition(", ")[0] if "steps" in name else name]
        for task, shown in of_tasks.items():
            scores = runs[name].get(task)
            if scores is None:  # not all were measured
                row += [""] * (len(shown) + 1)
                continue
            ladder = [score for size, score in scores.items() if size != half]
            row += [f"{score:.1f}" for score in [*(scores[size] for size in shown), sum(ladder) / len(ladder)]]
        rows.append(row)
    return rows


def _by_loss(run: str) -> tuple[str, bool, int, str]:
    """Sort runs by their losses, then by their layers and steps."""
    loss, _, of_run = run.partition(", ")
    return (" " if loss == "nothing done" else loss), of_run.startswith("ends"), len(of_run), of_run


def kept(folder: str) -> Cells:
    """Return scores over the ladder, and in brackets their share of the untrained full size."""
    sizes = reported(f"{folder}/README.md", "sts: by size, mean of the tasks")[""][1:-1]
    trained = RECIPE.replace(",", "").replace(" ", "_")
    ways = {"first layers": "cut", "first and last layers": "first_and_last_layers", "aligned": "cut_aligned"}
    rotated = {use: {f"aligned for {use}": f"cut_aligned_for_{use}"} for use in ("similarity", "search")}
    shown = [
        ("STS", "sts", {**ways, **rotated["similarity"], "trained": trained}),
        ("search", "retrieval", {**ways, **rotated["search"]}),
        ("classification", "classification", ways),
    ]
    rows = [["", *sizes]]
    for name, suite, methods in shown:
        whole = by_size(folder, suite, "cut")[sizes[-1]]
        for way, method in methods.items():
            # not all were measured
            if any((RESULTS / folder / "scores").glob(f"{suite}.{method}.?.csv")):
                scores = by_size(folder, suite, method)
                rows.append([f"{name}, {way}", *(f"{scores[size]:.1f} ({scores[size] / whole:.0%})" for size in sizes)])
    return rows


def by_size(folder: str, suite: str, method: str) -> pd.Series:
    """Return the mean over tasks and seeds at each size."""
    scores = pd.concat(map(pd.read_csv, (RESULTS / folder / "scores").glob(f"{suite}.{method}.?.csv")))
    return scores.groupby(scores["num_layers"].astype(str) + "L-" + scores["dim"].astype(str) + "d")["score"].mean()


def steps() -> Cells:
    """Return how long a training step takes, relative to another loss."""
    files = {
        "minilm-cpu": "6 x 384",
        "bert-base-cpu": "12 x 768",
        "minilm-cuda": "6 x 384, GPU",
        "bert-base-cuda-bf16": "12 x 768, GPU",
    }
    ratios = []
    for name in files:
        times = json.loads((RESULTS / "train_step" / f"{name}.json").read_text(encoding="utf-8"))["time_table"]
        ratios.append({(time["loss"], time["peer"]): f"{time['ratio']:.2f}" for time in times})
    return [
        ["Loss", "against", *files.values()],
        *([*names, *(of.get(pair, "") for of in ratios)] for names, pair in LOSSES.items()),
    ]
