"""Users' files: what spreadsheets write, rows without a text, and titles."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pandas as pd
import pytest

from st_matryoshka2d import DataWarning
from st_matryoshka2d.cli.tables import read_table, read_texts
from tests.support.pipelines import TEXTS


def test_an_empty_file_of_a_folder_is_named(files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    shutil.copytree(files / "texts", folder)
    (folder / "05b.txt").write_text(" \n", encoding="utf-8")
    with pytest.warns(DataWarning, match=r"texts: 1 of \d+ files have no text and are left out: 05b\.txt\.$"):
        assert read_texts(folder) == TEXTS


# What the programs write that make tables: the encoding, the separator, and the row of a blank cell.
SPREADSHEETS = [("utf-8", ","), ("utf-8-sig", ";"), ("utf-16", "\t"), ("cp1252", ";")]


@pytest.mark.filterwarnings("ignore:.* is read as Windows-1252")
@pytest.mark.parametrize(("encoding", "separator"), SPREADSHEETS)
def test_tables_of_spreadsheets(encoding: str, separator: str, tmp_path: Path) -> None:
    """Rows are counted as they are shown there: from the header, blank ones too, and a cell of two lines once."""
    cells = [("Tür", "Öffnet; \t, sich nicht"), ("", ""), ("NA", 'zwei\nZeilen "so"'), ("Größe", " ")]
    with (tmp_path / "faq.csv").open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=separator).writerows([("title", "answer"), *cells])
    table = read_table(tmp_path / "faq.csv")
    assert [*table.itertuples(name=None)] == [(2, *cells[0]), (4, *cells[2]), (5, *cells[3])]
    with pytest.warns(DataWarning, match=r"faq.csv: 1 of 3 rows have no text and are left out: 5\."):
        assert read_texts(tmp_path / "faq.csv", ["answer"]) == [cells[0][1], cells[2][1]]


def test_a_column_of_texts_alone_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text('text\n"first, the kettle"\n\nthen tea\n', encoding="utf-8")
    assert read_texts(tmp_path / "texts.csv") == ["first, the kettle", "then tea"]


@pytest.mark.parametrize("columns", [None, ["text"], ["title", "text"]])
def test_titles_are_joined_as_in_a_search(columns: list[str] | None, tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["a", "b"], "title": ["Tea", None], "text": ["is hot. ", "Rain."]})
    frame.to_csv(tmp_path / "documents.csv", index=False)
    frame.to_json(tmp_path / "documents.jsonl", orient="records", lines=True)
    for name in ("documents.csv", "documents.jsonl"):
        assert read_texts(tmp_path / name, columns) == ["Tea is hot.", "Rain."]
