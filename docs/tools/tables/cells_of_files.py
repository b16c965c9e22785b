"""The cells of the table on one small file."""

from __future__ import annotations

from reports import RESULTS, Cells, reported

__all__ = ["one_file", "one_multilingual_file"]

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


def one_multilingual_file() -> Cells:
    """Return the same of the multilingual model alone, in words: as it is, and in 8 bits."""
    model = f"{MODELS[0]}: "
    named = {
        "whole, float32": "as it is",
        "whole, int8": "in 8 bits",
        "6 layers (heal), vocabulary, int8": "half of the layers, healed, with the words of the texts, in 8 bits",
    }
    head, *rows = one_file()
    cells = {name.removeprefix(model): row for name, *row in rows if name.startswith(model)}
    return [["multilingual-e5-small", *head[1:]], *([shown, *cells[name]] for name, shown in named.items())]
