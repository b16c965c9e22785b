"""A section of our own in the card that sentence-transformers writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from st_matryoshka2d.files import replace_file
from st_matryoshka2d.sizes import Size

__all__ = ["called", "card_of", "has_section", "usage", "write_section"]

_USAGE = """```python
from st_matryoshka2d import load  # pip install st_matryoshka2d

small = load("{name}", num_layers={size.num_layers}, dim={size.dim})  # reads those layers only
small.save_pretrained("{size}")  # a plain checkpoint: it loads without st_matryoshka2d
```"""

# The headings above which readers look for it.
_BEFORE = re.compile(r"^## (Evaluation|Training Details)$", flags=re.MULTILINE)
_BEGIN = "<!-- {}: begin -->"
_LOADED = re.compile(r"""SentenceTransformer\(["']([^"']+)["']""")


def card_of(folder: str | os.PathLike[str]) -> Path:
    """The card of a saved model; refuse a folder that has none."""
    readme = Path(folder) / "README.md"
    if not readme.is_file():
        raise FileNotFoundError(f"There is no model card {readme}; save the model there first: model.save_pretrained(...).")
    return readme


def called(readme: Path) -> str:
    """What the card itself calls the model where it says how to load it."""
    told = _LOADED.search(readme.read_text(encoding="utf-8"))
    return told[1] if told else readme.resolve().parent.name


def usage(name: str, size: Size) -> str:
    """How a size of the model is loaded."""
    return _USAGE.format(name=name, size=size)


def has_section(readme: Path, name: str) -> bool:
    """Whether the card has a section of that name."""
    return _BEGIN.format(name) in readme.read_text(encoding="utf-8")


def write_section(readme: Path, name: str, section: str) -> None:
    """Put a section above the evaluation, or in place of the one that hidden comments mark with that name."""
    card = readme.read_text(encoding="utf-8")
    begin, end = _BEGIN.format(name), f"<!-- {name}: end -->"
    section = f"{begin}\n{section}\n{end}"
    earlier = re.compile(f"{begin}.*?{end}", flags=re.DOTALL)
    if earlier.search(card):
        changed = earlier.sub(lambda _: section, card)
    elif heading := _BEFORE.search(card):
        changed = f"{card[: heading.start()]}{section}\n\n{card[heading.start() :]}"
    else:
        changed = f"{card.rstrip()}\n\n{section}\n"
    replace_file(readme, lambda part: part.write_text(changed, encoding="utf-8"))
