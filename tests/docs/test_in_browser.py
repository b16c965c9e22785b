"""The site in a browser: at the width of a small laptop, no code and no table is wider than its column."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import browser

ROOT = Path(__file__).parents[2]
WIDTH = 1280
SCROLLED = """[...document.querySelectorAll('.md-content pre code, .md-typeset__scrollwrap')]
  .filter((element) => element.scrollWidth > element.clientWidth + 1)
  .map((element) => element.innerText.split('\\n').sort((a, b) => b.length - a.length)[0])"""


@pytest.mark.slow
def test_no_page_scrolls_sideways(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    with browser(tmp_path / "browser") as page:
        page.size(WIDTH, 900)
        wide = {}
        for file in pages:
            page.open(file)
            wide[str(file.relative_to(tmp_path))] = page.run(SCROLLED)
    assert not {name: lines for name, lines in wide.items() if lines}
