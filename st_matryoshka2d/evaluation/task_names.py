"""Look up names of mteb's tasks and benchmarks in its source files, because importing mteb takes seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path


def check_task_names(names: Iterable[str]) -> None:
    """Refuse a name that mteb's files do not contain. A name that they contain may still be none: mteb decides."""
    sources = list(_sources())
    for name in names:
        if sources and not any(f'"{name}"' in source for source in sources):
            known = (task for source in sources for task in re.findall(r'\bname="([^"]+)"', source))
            raise ValueError(unknown_task(name, known))


def unknown_task(name: str, known: Iterable[str]) -> str:
    """Tell which names are similar."""
    near = get_close_matches(name, set(known), n=3, cutoff=0.5)
    hint = f"Similar names: {', '.join(near)}." if near else "`mteb.get_tasks()` lists all tasks."
    return f"mteb has no task or benchmark named {name!r}. {hint}"


def _sources() -> Iterable[str]:
    """Read the files that define tasks and benchmarks, and the one that has the old names of renamed tasks."""
    found = PathFinder.find_spec("mteb")
    if found is None or found.origin is None:
        return
    folder = Path(found.origin).parent
    for file in [folder / "get_tasks.py", *(folder / "tasks").rglob("*.py"), *(folder / "benchmarks").rglob("*.py")]:
        if file.is_file():
            yield file.read_text(encoding="utf-8")
