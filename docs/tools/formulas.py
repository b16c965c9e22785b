"""Formulas as MathML, which browsers draw by themselves: the site needs no script and no network for them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import griffe
from latex2mathml.converter import convert

__all__ = ["MarkdownDocstrings", "on_page_content"]

# What pymdownx.arithmatex makes of $...$ and of $$...$$.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
_MATH_BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n\1 +\S.*|\n *(?=\n\1 +\S))*)", flags=re.MULTILINE)


def on_page_content(html: str, **_: Any) -> str:
    """Event of mkdocs: the formulas of a page.

    Args:
        html: The page, with formulas as LaTeX.
    """
    return _FORMULA.sub(lambda found: convert(unescape(found[2]), "block" if found[1] == "div" else "inline"), html)


class MarkdownDocstrings(griffe.Extension):
    """What docstrings say in Sphinx's way, as the Markdown of the site."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Event of griffe: an object was read from its source.

        Args:
            obj: The object.
        """
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Formulas between dollars; and "Examples:", which is shown as code, for "Example:".

    Args:
        docstring: As it is in the source.
    """
    docstring = _MATH_BLOCK.sub(lambda found: f"\n$$\n{' '.join(found[2].split())}\n$$\n", docstring)
    docstring = re.sub(r":math:`([^`]+)`", r"$\1$", docstring)
    return re.sub(r"^Example:$", "Examples:", docstring, flags=re.MULTILINE)
