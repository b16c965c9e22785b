"""Shared code of the command-line tests: run commands, read their output, and a table of pairs."""

from __future__ import annotations

import json
import re
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from st_matryoshka2d.cli.app import app

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


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words: object) -> Any:
    """Return the JSON that a command prints; refuse NaN."""
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def told(result: Result) -> str:
    """Return standard error without frames and line breaks."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())
