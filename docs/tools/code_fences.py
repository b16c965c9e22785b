"""Strip the test markers from code fences: the site's Markdown accepts only the language."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["on_page_markdown"]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs event: replace "```python more words" with "```python" in a page.

    Args:
        markdown: Source of the page.
    """
    return re.sub(r"^(```\w+) +[\w ]+$", r"\1", markdown, flags=re.MULTILINE)
