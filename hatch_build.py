"""What a release says of the project: the README with absolute links, and where the project is.

The README is for those who read it in the repository: links are relative, and it installs a
checkout. An index page shows it elsewhere, so a build with `PROJECT_URL`, the address of the
repository, makes links absolute and installs the release. Without it both stay.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["Metadata", "absolute", "released"]

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")
_BEFORE = re.compile(r"<!-- before the release -->\n.*?<!-- end -->\n", re.DOTALL)
_INSTALL = '```bash\npip install "st_matryoshka2d[all]"\n```\n'


def absolute(text: str, address: str, tag: str) -> str:
    """Return Markdown with the files of the repository linked by their address at a tag; pictures as files."""

    def link(found: re.Match[str]) -> str:
        picture, shown, target = found.groups()
        return f"{picture}[{shown}]({address}/{'raw' if picture else 'blob'}/{tag}/{target})"

    return _LINK.sub(link, text)


def released(text: str) -> str:
    """Return Markdown with the installation of a release in place of that of a checkout."""
    return _BEFORE.sub(lambda _: _INSTALL, text)


class Metadata(MetadataHookInterface):
    """Hatchling's hook for `readme` and `urls`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in both."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if address := os.environ.get("PROJECT_URL", "").rstrip("/"):
            text = absolute(released(text), address, f"v{metadata['version']}")
            changes = f"{address}/blob/main/CHANGELOG.md"
            metadata["urls"] = {"Repository": address, "Issues": f"{address}/issues", "Changelog": changes}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
