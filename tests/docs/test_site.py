"""The documentation site: navigation, reference, messages and formulas; its tables are those of the result files."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import yaml

from st_matryoshka2d.cli.app import app
from tests import ROOT

DOCS = ROOT / "docs"
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))


def pages_in(navigation: list[Any]) -> list[str]:
    """Return the paths of a nested navigation in order."""
    entries = [entry for item in navigation for entry in item.values()]
    return [page for entry in entries for page in (pages_in(entry) if isinstance(entry, list) else [entry])]


def public_names(module: str) -> list[str]:
    """Return a package's exports without importing it."""
    tree = ast.parse((ROOT / module.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    exports = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return list(ast.literal_eval(exports[0]))


def messages(package: Path) -> str:
    """Return all strings in the package's code, with ... for inserted values."""
    texts: list[str] = []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted({*pages, "CHANGELOG.md"})


@pytest.mark.parametrize("module", ["st_matryoshka2d", "st_matryoshka2d.losses", "st_matryoshka2d.pretraining"])
def test_every_public_name_is_in_the_reference_once(module: str) -> None:
    documented = re.findall(rf"^::: {re.escape(module)}\.(\w+)$", REFERENCE, flags=re.MULTILINE)
    assert sorted(documented) == sorted(public_names(module))


def test_every_command_is_in_the_reference() -> None:
    commands = [command.callback.__name__.replace("_", "-") for command in app.registered_commands if command.callback]
    assert commands
    page = run_path(str(DOCS / "tools" / "commands.py"))["on_page_markdown"](
        (DOCS / "api" / "cli.md").read_text(encoding="utf-8")
    )
    assert re.findall(r"^## `st-matryoshka2d ([\w-]+)`$", page, flags=re.MULTILINE) == commands
    assert "* `--num-layers " in page


def test_pages_use_public_import_paths() -> None:
    """Public names are in st_matryoshka2d, st_matryoshka2d.losses or st_matryoshka2d.pretraining."""
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "examples").glob("*.py")]
    shown = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert not re.findall(r"st_matryoshka2d\.(?!losses\b|pretraining\b)[a-z_]\w*\.\w+|st_matryoshka2d(?:\.\w+){3}", shown)


def test_links_resolve() -> None:
    for page in DOCS.rglob("*.md"):
        links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        missing = [link for link in links if "://" not in link and not (page.parent / link).is_file()]
        assert not missing, page


def test_a_formula_on_its_own_line_is_a_block_that_scrolls() -> None:
    render = run_path(str(DOCS / "tools" / "formulas.py"))["on_page_content"]
    line = render(r'<p><span class="arithmatex">\(x_1\)</span></p>')
    assert 'display="inline"' in line
    assert "<div" not in line
    block = render(r'<div class="arithmatex">\[\begin{split} a & = b \\ c & = d \end{split}\]</div>')
    assert block.startswith('<div class="formula"><math')
    assert 'display="block"' in block
    assert block.count('style="text-align: right"') == 2


def test_a_formula_that_the_site_cannot_show_stops_its_build() -> None:
    render = run_path(str(DOCS / "tools" / "formulas.py"))["on_page_content"]
    with pytest.raises(ValueError, match=r"\\arg in the formula"):
        render(r'<p><span class="arithmatex">\(\arg\min_x f\)</span></p>')


def docstrings(package: Path) -> dict[str, str]:
    """Return the docstrings with a formula of its own line, by file and line."""
    found: dict[str, str] = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ".. math::" in (text := ast.get_docstring(node) or ""):
                found[f"{path.name}:{node.lineno} {node.name}"] = text
    return found


def test_formulas_of_docstrings_are_whole_and_can_be_shown() -> None:
    tools = run_path(str(DOCS / "tools" / "formulas.py"))
    found = docstrings(ROOT / "st_matryoshka2d")
    assert len(found) > 10
    for where, text in found.items():
        for formula, after in re.findall(r"\$\$\n(.*)\n\$\$\n(.*)", tools["as_markdown"](text)):
            assert not after.strip(), f"{where}: the formula goes on outside of its block: {after}"
            shown = tools["on_page_content"](rf'<div class="arithmatex">\[{formula}\]</div>')
            assert shown.startswith('<div class="formula"><math'), where


def test_troubleshooting_quotes_messages_of_the_package() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    said = messages(ROOT / "st_matryoshka2d")
    own_words = {  # symptoms and messages of other libraries
        "Loading asks for `trust_remote_code=True`",
        "Other users cannot read model.safetensors",
        "Dot products of a cut are too small",
        "A server refuses `dimensions`",
        "... does not appear to have a file named pytorch_model.bin or model.safetensors",
        "Small sizes get better and the full one gets worse",
        "Each call takes half a minute, offline",
    }
    quoted = [heading for heading in re.findall(r"^### (.+)$", page, flags=re.MULTILINE) if heading not in own_words]
    assert len(quoted) > 10
    unknown = [heading for heading in quoted if any(part not in said for part in re.split(r" ?\.\.\. ?", heading))]
    assert not unknown


def test_the_notebook_is_the_code_of_the_first_pages() -> None:
    """tests/docs/test_pages.py runs these pages."""
    tool = run_path(str(ROOT / "docs" / "tools" / "notebook.py"))
    written = tool["NOTEBOOK"].read_text(encoding="utf-8")
    assert tool["notebook"]() == written, "run python docs/tools/notebook.py"
    code = ["".join(cell["source"]) for cell in json.loads(written)["cells"] if cell["cell_type"] == "code"]
    pages = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in ("index.md", "cheap_queries.md"))
    blocks = re.findall(r"^```python\n(.*?)^```", pages, flags=re.DOTALL | re.MULTILINE)
    assert [cell.removeprefix("%%writefile search.py\n") for cell in code[1:]] == [block.strip() for block in blocks]


TOOL = run_path(str(ROOT / "docs" / "tools" / "tables"))
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in TOOL["PAGES"]}


def test_every_table_is_up_to_date_and_on_one_page() -> None:
    assert [name for name, page in PAGES.items() if TOOL["filled"](page) != page] == []
    placed = [table for page in PAGES.values() for table in re.findall(r"<!-- table: (.+?) -->", page)]
    assert sorted(placed) == sorted(TOOL["TABLES"])


def test_a_table_is_replaced_and_the_text_around_it_stays() -> None:
    page = "Before\n\n<!-- table: time of a step -->\n\n| old |\n| --- |\n| 1 |\n\nAfter\n"
    written = TOOL["filled"](page)
    assert "| old |" not in written
    assert re.fullmatch(r"Before\n\n<!-- table: time of a step -->\n\n(\|.*\n)+\nAfter\n", written)
    assert TOOL["filled"](page.replace("| old |\n| --- |\n| 1 |\n\n", "")) == written
