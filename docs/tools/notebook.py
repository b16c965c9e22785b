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
_CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", flags=re.DOTALL | re.MULTILINE)
_PROGRAM = "import json\nimport sys\n"  # how a program begins that is a file of its own


def notebook() -> str:
    """Return the notebook, with the outputs that the pages show right below their code."""
    start = _cell("code", 'import os\n\nif not os.path.exists("examples"):\n    os.chdir("..")  # to the checkout')
    cells = [start, *(cell for page in PAGES for cell in _cells((DOCS / page).read_text(encoding="utf-8")))]
    numbered = [cell | {"id": f"cell-{number}"} for number, cell in enumerate(cells)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": numbered, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _cells(page: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a page, of which the parts are words, code and what it printed, in turn."""
    parts: list[Any] = [*_CODE.split(page), None, None]
    for words, code, shown in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if words.strip():
            # links and pictures of the page lead on from docs/
            yield _cell("markdown", re.sub(r"\]\((?!https?:|#)", "](../docs/", words))
        if code is not None:
            yield _cell("code", f"%%writefile search.py\n{code}" if code.startswith(_PROGRAM) else code, shown)


def _cell(kind: str, text: str, shown: str | None = None) -> dict[str, Any]:
    printed = {"output_type": "stream", "name": "stdout", "text": (shown or "").splitlines(keepends=True)}
    of_code: dict[str, Any] = {"execution_count": None, "outputs": [printed] if shown else []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.strip().splitlines(keepends=True), **of_code}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
