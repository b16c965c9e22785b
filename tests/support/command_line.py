"""Shared code of the command-line tests: a table of pairs, and what a command told."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
from typer.testing import Result

# In the tiny model's words, plus two texts that a CSV reader may parse as NaN and a number.
PAIRS = pd.DataFrame(
    [
        ("the cat sat on the mat", "a cat sat", 4.5),
        ("the old bird flew slowly", "the river ran", 0.5),
        ("a dog ran on the road", "the dog ran quickly", 4.0),
        ("NA", "42", 1.0),
        ("a red house", "a blue house under the tree", 2.5),
    ],
    columns=["sentence1", "sentence2", "score"],
)


Shell = Callable[[str], Result]


def told(result: Result) -> str:
    """Return standard error without frames and line breaks."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())
