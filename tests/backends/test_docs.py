"""The blocks of docs/serving.md that are marked `python backends`; tests/docs/test_pages.py runs the others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"


def test_the_marked_blocks_run(
    cuts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(cuts / "minilm-3L-64d", "small", ignore=shutil.ignore_patterns("onnx", "openvino"))
    blocks = re.findall(r"```python backends\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    assert capsys.readouterr().out.count("(1, 64)") == len(blocks) == 1
