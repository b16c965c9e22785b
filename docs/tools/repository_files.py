"""Add repository files that pages link to (`../examples/...`) to the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_markdown"]

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(?<=\]\()\.\./([\w./-]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs event: add the linked files to the site.

    Args:
        files: Files in `docs/`; linked files are appended.
        config: Configuration of the site.
    """
    pages = [Path(page.abs_src_path) for page in files.documentation_pages() if page.abs_src_path]
    linked = {path for page in pages for path in _LINK.findall(page.read_text(encoding="utf-8"))}
    for path in sorted({"CHANGELOG.md", *linked}):
        if (ROOT / path).is_file():  # mkdocs reports other links as broken
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs event: make links out of `docs/` relative to the site's root.

    Args:
        markdown: Source of the page.
    """
    return _LINK.sub(r"\1", markdown)
