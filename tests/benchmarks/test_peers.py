"""The table of peers, against the scores it was made of."""

from __future__ import annotations

import numpy as np
import pandas as pd
from peers import COLUMNS, int8, report

from tests import ROOT

PUBLISHED = ROOT / "benchmarks" / "results" / "peers"


def test_the_report_is_what_its_scores_make() -> None:
    frame = pd.read_csv(PUBLISHED / "peers.csv")
    assert list(frame) == list(COLUMNS)
    assert report(frame) == (PUBLISHED / "README.md").read_text(encoding="utf-8")


def test_the_page_has_the_rows_of_the_report() -> None:
    rows = [line for line in (PUBLISHED / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert [row for row in rows if row not in page] == []


def test_a_code_of_one_byte_stands_for_nearly_the_same_embedding() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    coded = int8(lambda texts: rows[: len(texts)], ["text"] * 50)(["text"] * 50)
    step = (rows.max(0) - rows.min(0)) / 255
    assert (np.abs(coded - rows) <= 1.001 * step).all()
    assert np.abs(coded - rows).max() > 0
