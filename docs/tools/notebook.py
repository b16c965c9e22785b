"""Write the story of the first pages as a notebook, examples/help_desk.ipynb: their texts, and their code as cells to run.

python docs/tools/notebook.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["NOTEBOOK", "notebook"]

DOCS = Path(__file__).resolve().parents[1]
NOTEBOOK = DOCS.parent / "examples" / "help_desk.ipynb"
PAGES = ("index.md", "cheap_queries.md")
_CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n.*?^```\n)?", flags=re.DOTALL | re.MULTILINE)
_PROGRAM = "import json\nimport sys\n"  # how a program begins that is a file of its own


def notebook() -> str:
    """Return the notebook. It has none of the outputs that the pages show: each reader makes them."""
    start = _cell("code", 'import os\n\nif not os.path.exists("examples"):\n    os.chdir("..")  # to the checkout')
    cells = [start, *(cell for page in PAGES for cell in _cells((DOCS / page).read_text(encoding="utf-8")))]
    numbered = [cell | {"id": f"cell-{number}"} for number, cell in enumerate(cells)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": numbered, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _cells(page: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a page; every second part is code."""
    for place, part in enumerate(_CODE.split(page)):
        if place % 2:
            yield _cell("code", f"%%writefile search.py\n{part}" if part.startswith(_PROGRAM) else part)
        elif part.strip():
            # links and pictures of the page lead on from docs/
            yield _cell("markdown", re.sub(r"\]\((?!https?:|#)", "](../docs/", part))


def _cell(kind: str, text: str) -> dict[str, Any]:
    of_code: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.strip().splitlines(keepends=True), **of_code}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
