"""Fences may say more than the language, to tests; the site's Markdown takes the language alone."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["on_page_markdown"]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Event of mkdocs: a page, with "```python" for "```python more words".

    Args:
        markdown: The page.
    """
    return re.sub(r"^(```\w+) +[\w ]+$", r"\1", markdown, flags=re.MULTILINE)
