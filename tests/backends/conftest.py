"""Cuts saved by the project's environment, for tests in an environment without the package."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROJECT_PYTHON = os.environ.get("PROJECT_PYTHON", str(HERE.parents[1] / ".venv" / "bin" / "python"))


@pytest.fixture(scope="session")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of saved cuts with the module names of sentence-transformers 5; exports are added to them."""
    folder = tmp_path_factory.mktemp("cuts")
    subprocess.run([PROJECT_PYTHON, str(HERE / "make_cuts.py"), str(folder)], check=True)
    for modules in folder.glob("*/modules.json"):
        older = re.sub(r'sentence_transformers\.[\w.]+\.(\w+)"', r'sentence_transformers.models.\1"', modules.read_text())
        modules.write_text(older)
    return folder
