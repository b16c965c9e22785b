"""Generate the command reference from the commands; api/cli.md marks its place."""

from __future__ import annotations

from typing import Any

import typer
from typer.cli import get_docs_for_click
from typer.main import get_group

from st_matryoshka2d.cli.app import app

__all__ = ["on_page_markdown"]

_PLACE = "<!-- every command with its options -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs event: insert the command reference into a page at its marker.

    Args:
        markdown: Source of the page.
    """
    return markdown.replace(_PLACE, reference()) if _PLACE in markdown else markdown


def reference() -> str:
    """Return usage, arguments and options of every command as Markdown."""
    group = get_group(app)
    context = typer.Context(group, info_name="st-matryoshka2d")
    return "\n".join(
        get_docs_for_click(obj=command, ctx=context, indent=1, name=name, call_prefix="st-matryoshka2d")
        for name, command in group.commands.items()
    )
