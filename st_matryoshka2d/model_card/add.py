"""Add what a model can be cut to, and its scores, to its card."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from st_matryoshka2d._hosts.sentence_transformers import UNNAMED
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.atomic import replace_file
from st_matryoshka2d.model_card.other_sections import (
    base_of_graph,
    is_graph_alone,
    onnx_section,
    sides_section,
    table_section,
    vocabulary_section,
)
from st_matryoshka2d.model_card.sizes_section import declarations, grid_section, sizes_section

if TYPE_CHECKING:
    from st_matryoshka2d.grid.grid_result import GridResult

# The headings that new sections go above.
_BEFORE = re.compile(r"^## (Evaluation|Training Details)$", flags=re.MULTILINE)
_BEGIN = "<!-- {}: begin -->"
# The first sentence of sentence-transformers' card. It says of every model that it was trained.
_TRAINED = re.compile(r"(This is a \[sentence-transformers\]\(\S+\) model) (?:trained|finetuned from( \[\S+\]\(\S+\)))\. ")
_SIMILARITY = re.compile(r"(It maps .+? dense vector space) and can be used for [^.\n]+\.")
_BY_THE_TRAINER = re.compile(r"^- generated_from_trainer$", flags=re.MULTILINE)
_LOADED = re.compile(r"""SentenceTransformer\(["']([^"']+)["']""")
_OF_A_GRAPH = """---
{base}library_name: onnx
pipeline_tag: sentence-similarity
tags:
- sentence-similarity
- feature-extraction
---

# {name}
"""


def add_to_model_card(folder: str | os.PathLike[str], grid: GridResult | None = None) -> None:
    """Add to the card of a saved model which sizes it has, what they keep, and perhaps their scores.

    `README.md` gets a section "Layers and dimensions", or "Queries and documents" for an
    `asymmetric` model, or "Token table" for the cut of 0 layers. A grid adds a section "Sizes", and
    a heat map `grid.png`; a smaller vocabulary adds "Vocabulary", and a graph of `export_onnx` in
    the folder adds "ONNX". A folder that has such a graph alone gets a card of it.

    A second call replaces the sections. Saving a model writes a new card, so call this after saving, then
    upload the folder. To show the model's name on the Hub, set it before saving:
    `model.model_card_data.set_model_id("you/name")`.

    Args:
        folder: Where the model was saved with `save_pretrained`, or exported with `export_onnx`.
        grid: Scores of that model; None for none.

    Raises:
        FileNotFoundError: There is no `README.md` in the folder, nor a graph.
        UsageError: Nothing says what the model can be cut to, or what it was cut from, and no grid
            is given; or the grid has more layers than the model, so it belongs to another; or the
            folder has a graph alone, whose scores no grid has.

    Example:
        >>> from st_matryoshka2d import evaluate, truncate
        >>> cut = truncate(model, num_layers=3, dim=64)
        >>> cut.save_pretrained("3L-64d")
        >>> grid = evaluate(cut, task, dims=[16, 64], show_progress_bar=False)
        >>> add_to_model_card("3L-64d", grid)
        >>> from pathlib import Path
        >>> card = Path("3L-64d/README.md").read_text(encoding="utf-8")
        >>> "layers 1, 5, 6 of 6 and the first 64 of 384" in card, "## Sizes" in card
        (True, True)
    """
    if is_graph_alone(Path(folder)):
        if grid is not None:
            raise UsageError(
                f"{folder} has an exported graph alone, and a grid has the scores of the model that it was made of. Score "
                "the file itself, and write its scores below the sections."
            )
        if not Path(folder, "README.md").exists():
            _begin_card(Path(folder))
    readme, name = _card_of(folder)
    place = readme.parent
    table = table_section(place, name)
    sizes = table or sides_section(place, name) or sizes_section(place, name)
    vocabulary = next((each.vocabulary for each in declarations(place) if each.vocabulary), None)
    graph = onnx_section(place, name)
    if not (sizes or graph) and grid is None and vocabulary is None:
        raise UsageError(
            f"There is nothing to add: the model in {folder} is a plain one, and no config says what it can be cut to or "
            "was cut from. Pass a grid of its scores."
        )
    if grid is not None:
        _write_section(readme, "sizes", grid_section(readme, grid.named(name), with_usage="load(" not in sizes))
    if table:
        _describe_queries(readme)
    if sizes:
        _write_section(readme, "trained sizes", sizes)
    if vocabulary:
        _write_section(readme, "vocabulary", vocabulary_section(vocabulary))
    if graph:
        _write_section(readme, "onnx", graph)


def _begin_card(folder: Path) -> None:
    """Write the card of a folder that has an exported graph alone."""
    base = base_of_graph(folder)
    card = _OF_A_GRAPH.format(name=folder.resolve().name, base=f"base_model: {base}\n" if base else "")
    replace_file(folder / "README.md", lambda part: part.write_text(card, encoding="utf-8"))


def _card_of(folder: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the path of a saved model's card, and the name in its own example of loading, or else that of the folder."""
    readme = Path(folder) / "README.md"
    if not readme.is_file():
        raise FileNotFoundError(f"There is no model card {readme}; save the model there first: model.save_pretrained(...).")
    match = _LOADED.search(readme.read_text(encoding="utf-8"))
    name = match[1] if match and match[1] != UNNAMED else readme.resolve().parent.name
    return readme, name


def _write_section(readme: Path, name: str, section: str) -> None:
    """Insert a section above the evaluation, or replace the one that hidden comments mark with that name."""
    card = _untrained(readme.read_text(encoding="utf-8"))
    begin, end = _BEGIN.format(name), f"<!-- {name}: end -->"
    section = f"{begin}\n{section}\n{end}"
    if earlier := re.search(f"{begin}.*?{end}", card, flags=re.DOTALL):
        changed = card.replace(earlier[0], section)
    elif heading := _BEFORE.search(card):
        changed = f"{card[: heading.start()]}{section}\n\n{card[heading.start() :]}"
    else:
        changed = f"{card.rstrip()}\n\n{section}\n"
    replace_file(readme, lambda part: part.write_text(changed, encoding="utf-8"))


def _describe_queries(readme: Path) -> None:
    """Let the card of a token table speak of queries, where that of every model speaks of similarity."""
    card = readme.read_text(encoding="utf-8")
    changed = _SIMILARITY.sub(r"\1, where a query is near the documents that answer it.", card)
    replace_file(readme, lambda part: part.write_text(changed, encoding="utf-8"))


def _untrained(card: str) -> str:
    """Correct the first sentence of the card of a model that no Trainer trained, such as an aligned one."""
    if _BY_THE_TRAINER.search(card):
        return card
    return _TRAINED.sub(lambda match: f"{match[1]}{f' based on{match[2]}' if match[2] else ''}. ", card)
