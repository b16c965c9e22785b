"""What a release says of the project: the README with absolute links, and where the project is.

Links of the README are relative, for those who read it in the repository. An index page shows it
elsewhere, so a build with `PROJECT_URL`, the address of the repository, makes them absolute.
Without it they stay.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["Metadata", "absolute"]

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def absolute(text: str, address: str, tag: str) -> str:
    """Return Markdown with the files of the repository linked by their address at a tag; pictures as files."""

    def link(found: re.Match[str]) -> str:
        picture, shown, target = found.groups()
        return f"{picture}[{shown}]({address}/{'raw' if picture else 'blob'}/{tag}/{target})"

    return _LINK.sub(link, text)


class Metadata(MetadataHookInterface):
    """Hatchling's hook for `readme` and `urls`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in both."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if address := os.environ.get("PROJECT_URL", "").rstrip("/"):
            text = absolute(text, address, f"v{metadata['version']}")
            changes = f"{address}/blob/main/CHANGELOG.md"
            metadata["urls"] = {"Repository": address, "Issues": f"{address}/issues", "Changelog": changes}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
