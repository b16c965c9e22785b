"""The cells of the tables on smaller vocabularies."""

from __future__ import annotations

from reports import Cells, reported

__all__ = ["questions", "vocabularies"]

SCORES = {"de": "STS-B, German", "en": "STS-B, English", "mlquestions": "MLQuestions", "scifact": "SciFact"}
ALL, HALF = "multilingual-e5-small", "multilingual-e5-small-6L"
# Rows of the reports, and what the page calls them.
OF_ALL = {
    "whole": "all words",
    "de, en": "German and English",
    "de, en, 30,000 rows": "German and English, 30,000 rows",
    "de, en, 60,000 rows": "German and English, 60,000 rows",
    "de, en, 2,000 texts each": "German and English, of 2,000 texts each",
    "es": "Spanish",
    "de, en, es, fr, it": "five languages",
    "mlquestions": "documents of MLQuestions",
    "scifact": "documents of SciFact",
}
OF_HALF = {"whole": "six layers, aligned: all words", "de, en": "six layers: German and English"}


def vocabularies() -> Cells:
    """Return what multilingual-e5-small weighs and scores with the words of several texts."""
    rows = [["words of", "rows", "MB", "MB, half precision", "STS-B, Spanish", *SCORES.values()]]
    for report, names in ((ALL, OF_ALL), (HALF, OF_HALF)):
        found = _found(report)
        for row, shown in names.items():
            rows.append([shown, *(found[row].get(column, "") for column in ("rows", "MB", "half", "es", *SCORES))])
    return rows


def questions() -> Cells:
    """Return the share of questions that is exact, by the texts of the vocabulary."""
    table = reported("vocabulary/questions.md")
    columns = {"de": "German", "es": "Spanish", "en": "English"}
    rows = [["vocabulary of", *columns.values()]]
    for name, cells in table.items():
        if name:
            found = dict(zip(table[""][1:], cells, strict=True))
            rows.append([name, *(found[language].rstrip("%") for language in columns)])
    return rows


def _found(report: str) -> dict[str, dict[str, str]]:
    """Return the rows of a report by their names, and each cell by its column."""
    table = reported(f"vocabulary/{report}.md")
    found = {name: dict(zip(table[""][1:], cells, strict=True)) for name, cells in table.items() if name}
    for cells in found.values():
        cells["MB"], cells["half"] = cells["MB"].split(", ")
    return found
