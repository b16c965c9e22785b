"""The cells of the table on one small file."""

from __future__ import annotations

from reports import RESULTS, Cells, reported

__all__ = ["one_file"]

MODELS = ("multilingual-e5-small", "all-MiniLM-L6-v2")
SETS = {"de": "STS-B, German", "en": "STS-B, English", "SciFact": "SciFact", "MLQuestions": "MLQuestions"}


def one_file() -> Cells:
    """Return megabytes and milliseconds of each file, and the share (%) of the whole model's scores that it keeps."""
    models = [model for model in MODELS if (RESULTS / "one_file" / f"{model}.md").exists()]
    tables = {model: reported(f"one_file/{model}.md") for model in models}
    sets = {name: shown for name, shown in SETS.items() if any(name in table[""] for table in tables.values())}
    rows = [["", "MB", *sets.values(), "ms of a query"]]
    for model, table in tables.items():
        found = {name: dict(zip(table[""][1:], cells, strict=True)) for name, cells in table.items() if name}
        whole = found["whole, float32"]
        for name, cells in found.items():
            kept = [f"{100 * float(cells[of]) / float(whole[of]):.0f}" if of in cells else "" for of in sets]
            rows.append([f"{model}: {name}", f"{float(cells['MB']):.0f}", *kept, cells["ms of a query"]])
    return rows
