"""How options look in `--help`: flags without a type, the values of others in plain words."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption

# Typer prints Python's types, such as <list[Path]> and <int range>.
_WORDS = {"Path": "file", "path": "file", "dir": "folder", "int range": "int"}


class _PlainOptions:
    """Mixin for a command or a group: every option names what it takes, and a flag takes nothing."""

    def get_params(self, context: Any) -> list[Any]:
        """Return the options, also the ones that typer adds."""
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for option in params:
            if isinstance(option, TyperOption) and option.metavar is None:
                option.metavar = "" if option.is_flag else _in_words(option.display_type(context))
        return params


class PlainGroup(_PlainOptions, TyperGroup):
    """The list of commands."""


class PlainCommand(_PlainOptions, TyperCommand):
    """A command."""


def _in_words(kind: str) -> str:
    [word] = re.findall(r"^<(?:list\[)?(.*?)\]?>$", kind) or [kind]
    return f"<{_WORDS.get(word, word)}>"
