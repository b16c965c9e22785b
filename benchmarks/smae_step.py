"""Time and memory of an SMAE step, relative to a straightforward version and to plain masked language modelling.

    python benchmarks/smae_step.py
    python benchmarks/smae_step.py --device cuda --bf16 --batch-size 64

The model is a BERT with random weights, on random tokens. A step clears the gradients, runs the
forward and backward pass, and steps AdamW.

- ours: `SMAEForPreTraining`. It scores only masked tokens and recomputes the decoder of each size
  in the backward pass.
- straightforward: the same model and loss. It scores every position, keeps the decoder of each
  size, and uses torch's cross entropy.
- mlm: the same backbone with transformers' masked-LM loss, which has neither sizes nor a decoder.

Times are taken in turns. Memory is the peak of two steps, and growth is what they add to the
model's memory: on a GPU the allocated memory; on a CPU, on Linux, that of a separate process, in
which freed memory returns to the system at once, so that fragmentation does not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from measure import described, megabytes, wait
from scipy import stats
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import trange
from transformers import BertConfig, BertForMaskedLM, set_seed

from st_matryoshka2d.pretraining import SMAEForPreTraining

Batch = dict[str, Tensor]
MODELS = {"bert-base": BertConfig(), "tiny": BertConfig(hidden_size=32, num_hidden_layers=6, num_attention_heads=4)}
ENCODER_RATIO, DECODER_RATIO = 0.2, 0.4


def ours(model: SMAEForPreTraining, batch: Batch) -> Tensor:
    """Compute the loss with the package."""
    loss: Tensor = model(**batch).loss
    return loss


def straightforward(model: SMAEForPreTraining, batch: Batch) -> Tensor:
    """Compute equations 6-9 line by line, for BERT."""
    mlm: Any = model.mlm
    block: Any = model.decoder[0]
    states = mlm.bert(batch["input_ids"], batch["attention_mask"], output_hidden_states=True).hidden_states
    embedded = mlm.bert.embeddings(batch["decoder_input_ids"])
    total = torch.zeros((), device=embedded.device)
    for size in model.sizes:
        if model.W is None:
            raise ValueError("This comparison needs projection='linear'.")
        projected = states[size.num_layers][..., : size.dim] @ model.W[: size.dim]
        total = total + cross_entropy(mlm.cls(projected).flatten(0, 1), batch["labels"].flatten())
        decoded = block(torch.cat([projected[:, :1], embedded[:, 1:]], dim=1))
        decoded = decoded[0] if isinstance(decoded, tuple) else decoded
        total = total + cross_entropy(mlm.cls(decoded).flatten(0, 1), batch["decoder_labels"].flatten())
    return total / len(model.sizes)


def plain(model: SMAEForPreTraining, batch: Batch) -> Tensor:
    """Compute the plain masked-LM loss: no sizes, no decoder."""
    loss: Tensor = model.mlm(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).loss
    return loss


WAYS: dict[str, Callable[[SMAEForPreTraining, Batch], Tensor]] = {
    "ours": ours,
    "straightforward": straightforward,
    "mlm": plain,
}


class Training:
    """A model, an optimizer and a batch without padding, which needs no attention mask."""

    def __init__(self, way: str, options: argparse.Namespace) -> None:
        set_seed(options.seed)
        self.way = WAYS[way]
        self.device = options.device
        self.autocast = torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.bf16)
        self.model = SMAEForPreTraining(BertForMaskedLM(MODELS[options.model])).train().to(options.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        words = self.model.mlm.config.vocab_size
        tokens = torch.randint(1000, words, (options.batch_size, options.tokens))
        self.batch = {"attention_mask": torch.ones_like(tokens)}
        for prefix, ratio in {"": ENCODER_RATIO, "decoder_": DECODER_RATIO}.items():
            masked = torch.rand(tokens.shape) < ratio
            masked[:, 0] = False
            self.batch[f"{prefix}input_ids"] = tokens.masked_fill(masked, 103)
            self.batch[f"{prefix}labels"] = tokens.masked_fill(~masked, -100)
        self.batch = {name: values.to(options.device) for name, values in self.batch.items()}

    def step(self) -> float:
        """Train one step; return the seconds it took."""
        wait(self.device)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        with self.autocast:
            loss = self.way(self.model, self.batch)
        loss.backward()
        self.optimizer.step()
        wait(self.device)
        return time.perf_counter() - start


def time_table(options: argparse.Namespace) -> pd.DataFrame:
    """Measure median seconds and the median per-round ratio to `ours`, with its 95 % interval from order statistics."""
    trainings = {way: Training(way, options) for way in WAYS}
    with torch.no_grad(), trainings["ours"].autocast:
        losses = {way: float(WAYS[way](trainings["ours"].model.eval(), trainings["ours"].batch)) for way in WAYS}
    trainings["ours"].model.train()
    rounds = []
    for turn in trange(1 + options.pairs, desc="rounds"):
        gc.collect()
        rounds.append({way: trainings[way].step() for way in (list(WAYS) if turn % 2 else reversed(WAYS))})
    seconds = pd.DataFrame(rounds[1:])
    rows = []
    for way in WAYS:
        ratios = seconds[way] / seconds["ours"]
        low, high = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
        rows.append([way, losses[way], seconds[way].median(), ratios.median(), low, high])
    return pd.DataFrame(rows, columns=["way", "loss", "seconds", "times ours", "low", "high"])


def measure_memory(way: str, options: argparse.Namespace) -> tuple[float, float]:
    """Return the peak memory of two steps and its growth over them; on a CPU, run in a separate process."""
    gc.collect()
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    training = Training(way, options)
    before = megabytes(options.device, "now")
    for _ in range(2):
        training.step()
    return (peak := megabytes(options.device, "peak")), peak - before


def memory_table(options: argparse.Namespace) -> pd.DataFrame:
    """Measure the peak of two steps in megabytes and its ratio to `ours`."""
    measure = partial(measure_memory, options=options)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**17)
    with ProcessPoolExecutor(1, torch.multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        # What a GPU has allocated is counted exactly, so that one process can measure all ways.
        found = list(map(measure, WAYS) if options.device == "cuda" else pool.map(measure, WAYS))
    table = pd.DataFrame(found, columns=["peak MB", "growth MB"])
    table.insert(0, "way", list(WAYS))
    return table.assign(**{"times ours": table["peak MB"] / table["peak MB"][0]})


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="bert-base")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "smae_step")
    for name, default in {"--pairs": 30, "--batch-size": 16, "--tokens": 128, "--seed": 0}.items():
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    tables = {"Time": time_table(options), "Memory": memory_table(options)}
    lines = [
        f"# An SMAE step: {options.model}",
        "",
        f"Batches of {options.batch_size} x {options.tokens} tokens, {options.pairs} rounds, "
        f"{described(options.device, torch.bfloat16 if options.bf16 else torch.float32)}. `straightforward` scores every "
        "position and keeps the decoder of each size; `mlm` is plain masked language modelling. "
        "Written by `benchmarks/smae_step.py`.",
    ]
    for name, table in tables.items():
        cells = table.map(lambda value: f"{value:.4g}" if isinstance(value, float) else str(value)).to_numpy().tolist()
        rows = [list(table.columns), ["---"] + ["---:"] * (len(table.columns) - 1), *cells]
        lines += ["", f"## {name}", "", *(f"| {' | '.join(row)} |" for row in rows)]
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{options.model}-{options.device}{'-bf16' if options.bf16 else ''}"
    (options.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    content = {title: table.to_dict("records") for title, table in tables.items()}
    (options.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
