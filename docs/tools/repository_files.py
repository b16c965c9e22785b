"""Add repository files that pages link to (`../examples/...`) to the site, and what these link to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_markdown"]

ROOT = Path(__file__).resolve().parents[2]
_OUT_OF_DOCS = re.compile(r"(?<=\]\()\.\./([\w./-]+)")
_LINK = re.compile(r"\]\(([\w./-]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs event: add the linked files to the site.

    Args:
        files: Files in `docs/`; linked files are appended.
        config: Configuration of the site.
    """
    pages = [Path(page.abs_src_path) for page in files.documentation_pages() if page.abs_src_path]
    known, new = {*pages}, {ROOT / "CHANGELOG.md", *(path for page in pages for path in linked(page))}
    while new := {
        path for path in new - known if path.is_file() and ROOT / "docs" not in path.parents
    }:  # mkdocs reports others
        known |= new
        new = {path for page in new if page.suffix == ".md" for path in linked(page)}
    for path in sorted(known.difference(pages)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def linked(page: Path) -> set[Path]:
    """Return the files that a page links to by relative paths."""
    return {(page.parent / link).resolve() for link in _LINK.findall(page.read_text(encoding="utf-8"))}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs event: make links out of `docs/` relative to the site's root.

    Args:
        markdown: Source of the page.
    """
    return _OUT_OF_DOCS.sub(r"\1", markdown)
