"""Render formulas as MathML, which browsers display without scripts or network access."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import griffe
from latex2mathml.converter import convert

__all__ = ["MarkdownDocstrings", "on_page_content"]

# Output of pymdownx.arithmatex for $...$ and $$...$$.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
# What the converter does not know, it leaves as it is written.
_UNKNOWN = re.compile(r">(\\[a-zA-Z]+)<")
_MATH_BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n\1 +\S.*|\n *(?=\n\1 +\S))*)", flags=re.MULTILINE)


def on_page_content(html: str, **_: Any) -> str:
    """MkDocs event: convert the formulas of a page to MathML.

    Args:
        html: The page, with LaTeX formulas.
    """
    return _FORMULA.sub(_as_mathml, html)


def _as_mathml(found: re.Match[str]) -> str:
    """Return a formula in a line, or one of its own, which scrolls where it is wider than the page."""
    inline = found[1] == "span"
    formula = convert(unescape(found[2]), display="inline" if inline else "block")
    if unknown := _UNKNOWN.search(formula):
        raise ValueError(f"{unknown[1]} in the formula {unescape(found[2])!r} cannot be shown: write it in other commands.")
    # browsers ignore the attribute
    formula = re.sub(r'columnalign="(\w+)"', r'style="text-align: \1"', formula)
    return formula if inline else f'<div class="formula">{formula}</div>'


class MarkdownDocstrings(griffe.Extension):
    """Convert Sphinx syntax in docstrings to the site's Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Griffe event: convert the docstring of an object.

        Args:
            obj: An object read from its source.
        """
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Put formulas between dollars, and replace "Example:" with "Examples:", which is shown as code.

    Args:
        docstring: Docstring in the source.
    """
    docstring = _MATH_BLOCK.sub(lambda found: f"\n$$\n{' '.join(found[2].split())}\n$$\n", docstring)
    docstring = re.sub(r":math:`([^`]+)`", r"$\1$", docstring)
    return re.sub(r"^Example:$", "Examples:", docstring, flags=re.MULTILINE)
