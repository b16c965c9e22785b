"""Add repository files that pages link to (`../examples/...`) to the site, and what these link to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown"]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\(([\w./-]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs event: add the linked files to the site.

    Args:
        files: Files in `docs/`; linked files are appended.
        config: Configuration of the site.
    """
    pages = [Path(page.abs_src_path) for page in files.documentation_pages() if page.abs_src_path]
    for path in sorted({ROOT / "CHANGELOG.md", *reached(pages)}):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def reached(pages: list[Path]) -> set[Path]:
    """Return the files outside `docs/` that pages link to, themselves or through other Markdown files."""
    found: set[Path] = set()
    while pages:
        page, *pages = pages
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / link).resolve()
            # mkdocs reports broken links
            if path.is_file() and DOCS not in path.parents and path not in found:
                found.add(path)
                pages += [path] if path.suffix == ".md" else []
    return found


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """MkDocs event: links between files of the repository become links between pages, as `docs/` is the site's root.

    Args:
        markdown: Source of the page.
        page: The page.
    """
    here = page.file.src_uri
    source = DOCS / here if (DOCS / here).exists() else ROOT / here

    def link(found: re.Match[str]) -> str:
        path = (source.parent / found[1]).resolve()
        if not path.exists():  # mkdocs reports it
            return found[0]
        return "](" + Path(os.path.relpath(place_on_site(path), place_on_site(source).parent)).as_posix()

    return _LINK.sub(link, markdown)


def place_on_site(path: Path) -> Path:
    """Return the place of a file of the repository on the site, below the root."""
    return ROOT / path.relative_to(DOCS if DOCS in path.parents else ROOT)
