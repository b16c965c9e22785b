"""Write the tables of the README and the pages from the result files. A table stands below a comment that names it.

python docs/tools/tables
"""

from __future__ import annotations

import re
from pathlib import Path

from cells import TABLES, Cells

__all__ = ["TABLES", "filled"]

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_PLACE = re.compile(r"(<!-- table: (.+?) -->\n\n)(?:(?:\|.*\n)+\n)?")


def filled(page: str) -> str:
    """Return a page with its tables written anew.

    Args:
        page: Markdown; `<!-- table: fewer dims -->` marks the place of a table of `TABLES`.
    """
    return _PLACE.sub(lambda place: f"{place[1]}{_markdown(TABLES[place[2]]())}\n", page)


def _markdown(rows: Cells) -> str:
    head, *body = rows
    rule = ["---:" if all(re.match(r"\d|$", cell) for cell in column) else "---" for column in zip(*body, strict=True)]
    lines = [head, rule, *body]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if (written := filled(page)) != page:
            path.write_text(written, encoding="utf-8")
