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
            if path.is_file() and ROOT / "docs" not in path.parents and path not in found:  # mkdocs reports broken links
                found.add(path)
                pages += [path] if path.suffix == ".md" else []
    return found


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs event: make links out of `docs/` relative to the site's root, not those that only leave a folder of it.

    Args:
        markdown: Source of the page.
    """
    return _OUT_OF_DOCS.sub(lambda link: link[1] if (ROOT / link[1]).exists() else link[0], markdown)
