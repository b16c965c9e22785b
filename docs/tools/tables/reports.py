"""Read the tables of the result files."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["RESULTS", "Cells", "reported"]

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"

Cells = list[list[str]]


def reported(file: str, heading: str = "") -> dict[str, list[str]]:
    """Return the rows of a report's table by their names, without the spread over seeds; "" names the head."""
    text = (RESULTS / file).read_text(encoding="utf-8").split(f"\n## {heading}\n" if heading else "\n", 1)[1]
    (table, *_) = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    rows = [[re.sub(r" ± .*", "", cell.strip()) for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {"": rows[0], **{name: cells for name, *cells in rows[2:]}}
