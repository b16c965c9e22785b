"""What importing costs: each verb in a new process, relative to `import sentence_transformers`.

    python benchmarks/import_time.py

Rounds alternate between the statements, so that a busy moment meets all of them; the table has
medians. It goes to `--out` as Markdown and JSON.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import pandas as pd
from measure import markdown

PEER = "import sentence_transformers"
STATEMENTS = [
    PEER,
    "import st_matryoshka2d",
    "from st_matryoshka2d import Size, DataWarning",
    "from st_matryoshka2d import GridResult",
    "from st_matryoshka2d import truncate, load",
    "from st_matryoshka2d import encode_sizes, encode_to_parquet",
    "from st_matryoshka2d import align",
    "from st_matryoshka2d.losses import StarbucksLoss",
    "from st_matryoshka2d.pretraining import SMAETrainer",
    "from st_matryoshka2d import evaluate",
    "from st_matryoshka2d.cli.app import app",
]
_TIMED = "import time\nstart = time.perf_counter()\n{}\nprint(time.perf_counter() - start)"


def seconds(statement: str) -> float:
    """Time one statement in a new interpreter."""
    return float(subprocess.check_output([sys.executable, "-c", _TIMED.format(statement)], text=True))


def main() -> None:
    """Read the command line, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "import_time")
    options = parser.parse_args()
    for statement in STATEMENTS:
        seconds(statement)  # the first import compiles
    rounds = [[seconds(statement) for statement in STATEMENTS] for _ in range(options.rounds)]
    medians = [statistics.median(of_statement) for of_statement in zip(*rounds, strict=True)]
    rows = [
        [f"`{statement}`", f"{median:.2f}", f"{median / medians[0]:.2f}"]
        for statement, median in zip(STATEMENTS, medians, strict=True)
    ]
    about = f"Median of {options.rounds} new processes each. Written by `benchmarks/import_time.py`."
    lines = ["# What importing costs", "", about, "", *markdown([["", "seconds", "relative"], *rows])]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pd.DataFrame({"statement": STATEMENTS, "seconds": medians}).to_json(
        options.out / "import_time.json", orient="records", indent=1
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
