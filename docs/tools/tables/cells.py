"""The cells of each table, by its name."""

from __future__ import annotations

from cells_of_evidence import (
    choices,
    elsewhere,
    healed,
    leaderboard,
    of_half,
    other_sets,
    public_index,
    public_rivals,
    shallow,
    unseen_tables,
)
from cells_of_files import one_file, one_multilingual_file
from cells_of_methods import MINILM, kept, layers_trained, papers, steps
from cells_of_queries import trained, trained_briefly
from cells_of_rerankers import rerankers
from cells_of_vocabulary import questions, vocabularies
from reports import Cells

__all__ = ["TABLES", "Cells"]

TABLES = {
    "what half the layers keep": of_half,
    "methods of the papers": papers,
    "layers that training keeps": layers_trained,
    "layers after pre-training": lambda: layers_trained("pretrained-4x128"),
    "all-MiniLM-L6-v2 by size": lambda: kept(MINILM[1]),
    "time of a step": steps,
    "queries by few layers": shallow,
    "trained layers": trained,
    "trained briefly": trained_briefly,
    "leaderboard": leaderboard,
    "healed": healed,
    "documents unseen": unseen_tables,
    "documents of other sets": other_sets,
    "rivals": public_rivals,
    "choices of layers": choices,
    "sentences and classes": elsewhere,
    "bytes on public tasks": public_index,
    "rerankers": rerankers,
    "vocabularies": vocabularies,
    "questions": questions,
    "one small multilingual file": one_multilingual_file,
    "one small file": one_file,
}
