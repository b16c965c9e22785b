"""STS-B in translation: the files `stsb-<language>-{train,test}.csv` of stsb-multi-mt."""

from __future__ import annotations

from pathlib import Path

import pandas as pd


def table(folder: Path, language: str, part: str) -> pd.DataFrame:
    """Read pairs and their scores; the files have no header."""
    return pd.read_csv(folder / f"stsb-{language}-{part}.csv", names=["sentence1", "sentence2", "score"])
