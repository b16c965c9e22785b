"""The table of peers, compared with its scores."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from peers import COLUMNS, int8, report

from tests import ROOT

PUBLISHED = ROOT / "benchmarks" / "results" / "peers"


def test_report_matches_scores() -> None:
    frame = pd.read_csv(PUBLISHED / "peers.csv")
    assert list(frame) == list(COLUMNS)
    assert report(frame) == (PUBLISHED / "README.md").read_text(encoding="utf-8")


def test_page_quotes_rows_of_report() -> None:
    report = (PUBLISHED / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "other_ways.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| way \|.*\n(?:\|.*\n)+", page, flags=re.MULTILINE)
    rows = table.splitlines()
    assert len(rows) > 10
    assert set(rows) <= set(report.splitlines())


def test_int8_approximates_embeddings() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    coded = int8(lambda texts: rows[: len(texts)], ["text"] * 50)(["text"] * 50)
    step = (rows.max(0) - rows.min(0)) / 255
    assert (np.abs(coded - rows) <= 1.001 * step).all()
    assert np.abs(coded - rows).max() > 0
