from __future__ import annotations

import re
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import st_matryoshka2d
from tests import ROOT

LINK = re.compile(r"\]\(([^)]+)\)")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def readme_of_a_release() -> str:
    core = ProjectMetadata(str(ROOT), PluginManager()).core
    assert core.readme_content_type == "text/markdown"
    return core.readme


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {st_matryoshka2d.__version__}\n" in citation
    released = re.findall(r"date-released: (\S+)", citation)
    assert f"## [{st_matryoshka2d.__version__}] - {released[0]}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = [target for target in LINK.findall(README) if not target.startswith("https:")]
    assert len(targets) > 10
    for target in targets:
        name, _, heading = target.partition("#")
        assert (ROOT / name).exists(), target
        headings = re.findall(r"^#+ (.+)$", Path(ROOT / name).read_text(encoding="utf-8"), re.M) if heading else []
        slugs = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
        assert not heading or heading in slugs, target


def test_an_index_page_has_absolute_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJECT_URL", "https://host/me/it/")
    text, tag = readme_of_a_release(), f"v{st_matryoshka2d.__version__}"
    assert all(target.startswith("https:") for target in LINK.findall(text))
    assert f"](https://host/me/it/blob/{tag}/docs/index.md)" in text
    assert re.findall(r"!\[[^\]]*\]\((.*)\)", text) == [f"https://host/me/it/raw/{tag}/docs/images/kept.png"]
    assert LINK.sub("", text) == LINK.sub("", README)
    urls = ProjectMetadata(str(ROOT), PluginManager()).core.urls
    assert urls["Repository"] == "https://host/me/it"


def test_without_an_address_links_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROJECT_URL", raising=False)
    assert readme_of_a_release() == README
    assert not ProjectMetadata(str(ROOT), PluginManager()).core.urls
