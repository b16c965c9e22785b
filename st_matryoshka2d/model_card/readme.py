"""Write sections into the README.md of a saved model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from st_matryoshka2d._hosts.sentence_transformers import UNNAMED
from st_matryoshka2d.files.atomic import replace_file

USAGE = """```python
from st_matryoshka2d import load  # of the package st_matryoshka2d

small = load("{name}", num_layers={size.num_layers}, dim={size.dim}{layers})  # reads those layers only
small.save_pretrained("{size}")  # a plain checkpoint: it loads without st_matryoshka2d
```"""

# The headings that new sections go above.
_BEFORE = re.compile(r"^## (Evaluation|Training Details)$", flags=re.MULTILINE)
BEGIN = "<!-- {}: begin -->"
# The first sentence of sentence-transformers' card. It says of every model that it was trained.
_TRAINED = re.compile(r"(This is a \[sentence-transformers\]\(\S+\) model) (?:trained|finetuned from( \[\S+\]\(\S+\)))\. ")
_SIMILARITY = re.compile(r"(It maps .+? dense vector space) and can be used for [^.\n]+\.")
_BY_THE_TRAINER = re.compile(r"^- generated_from_trainer$", flags=re.MULTILINE)
_LOADED = re.compile(r"""SentenceTransformer\(["']([^"']+)["']""")


def card_of(folder: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the path of a saved model's card, and the name in its own example of loading, or else that of the folder."""
    readme = Path(folder) / "README.md"
    if not readme.is_file():
        raise FileNotFoundError(f"There is no model card {readme}; save the model there first: model.save_pretrained(...).")
    match = _LOADED.search(readme.read_text(encoding="utf-8"))
    name = match[1] if match and match[1] != UNNAMED else readme.resolve().parent.name
    return readme, name


def first_module(folder: Path) -> tuple[str, Path]:
    """Return the type and the folder of the first module of a saved model; a plain network has no type."""
    listed = folder / "modules.json"
    if not listed.is_file():
        return "", folder
    first = json.loads(listed.read_text(encoding="utf-8"))[0]
    return first["type"], folder / first["path"]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of numbers."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---:"] * len(head), *rows))


def write_section(readme: Path, name: str, section: str) -> None:
    """Insert a section above the evaluation, or replace the one that hidden comments mark with that name."""
    card = _untrained(readme.read_text(encoding="utf-8"))
    begin, end = BEGIN.format(name), f"<!-- {name}: end -->"
    section = f"{begin}\n{section}\n{end}"
    if earlier := re.search(f"{begin}.*?{end}", card, flags=re.DOTALL):
        changed = card.replace(earlier[0], section)
    elif heading := _BEFORE.search(card):
        changed = f"{card[: heading.start()]}{section}\n\n{card[heading.start() :]}"
    else:
        changed = f"{card.rstrip()}\n\n{section}\n"
    replace_file(readme, lambda part: part.write_text(changed, encoding="utf-8"))


def describe_queries(readme: Path) -> None:
    """Let the card of a token table speak of queries, where that of every model speaks of similarity."""
    card = readme.read_text(encoding="utf-8")
    changed = _SIMILARITY.sub(r"\1, where a query is near the documents that answer it.", card)
    replace_file(readme, lambda part: part.write_text(changed, encoding="utf-8"))


def _untrained(card: str) -> str:
    """Correct the first sentence of the card of a model that no Trainer trained, such as an aligned one."""
    if _BY_THE_TRAINER.search(card):
        return card
    return _TRAINED.sub(lambda match: f"{match[1]}{f' based on{match[2]}' if match[2] else ''}. ", card)
