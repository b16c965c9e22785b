"""The command line as a program: its start, its imports and its completion."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from st_matryoshka2d import __version__
from st_matryoshka2d.cli.app import app
from tests import ROOT

PROGRAM = Path(sys.executable).with_name("st-matryoshka2d")


def output(command: list[Any], **environment: str) -> str:
    """Run a program; return its standard output."""
    settings: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
    return str(subprocess.run(command, env={**os.environ, **environment}, **settings).stdout)


def test_it_imports_public_names_alone() -> None:
    for path in (ROOT / "st_matryoshka2d" / "cli").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        imports = [node for node in nodes if isinstance(node, ast.Import)]
        modules |= {one.name for node in imports for one in node.names}
        inside = {name for name in modules if name.startswith("st_matryoshka2d.")}
        others = {name for name in inside if not name.startswith("st_matryoshka2d.cli.")}
        # and what a config says, and how titles and texts are joined, each in one place
        known = {"st_matryoshka2d.errors", "st_matryoshka2d.model.declaration", "st_matryoshka2d._hosts.mteb_texts"}
        known |= {
            "st_matryoshka2d.model.layers",
            "st_matryoshka2d.model.readout",
            "st_matryoshka2d.model.sides",
            "st_matryoshka2d.sizes",
        }  # what a size has
        assert others <= known, path


@pytest.mark.parametrize("command", sorted(get_group(app).commands))
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"st-matryoshka2d {command} " in result.stdout


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys; from st_matryoshka2d.cli.app import app; "
        "app(['grid', '--help'], standalone_mode=False); print(*sys.modules)"
    )
    loaded = set(output([sys.executable, "-c", code]).splitlines()[-1].split())
    assert "typer" in loaded
    assert not {"torch", "transformers", "sentence_transformers", "mteb", "pandas"} & loaded


@pytest.mark.slow
@pytest.mark.parametrize("start", [[PROGRAM], [sys.executable, "-m", "st_matryoshka2d"]])
def test_it_starts(start: list[Any]) -> None:
    assert output([*start, "--version"]) == f"st-matryoshka2d {__version__}\n"


@pytest.mark.slow
def test_the_shell_completes_commands() -> None:
    asked = {"COMP_WORDS": "st-matryoshka2d tr", "COMP_CWORD": "1"}
    told = output([PROGRAM], _ST_MATRYOSHKA2D_COMPLETE="complete_bash", **asked)
    assert told.split() == ["truncate"]
