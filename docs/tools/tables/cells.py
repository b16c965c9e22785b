"""The cells of each table, by its name."""

from __future__ import annotations

from cells_of_evidence import leaderboard, public_first, public_index, public_rivals, unseen_tables
from cells_of_methods import CUTS, DEPTHS, MINILM, MPNET, WIDTHS, cuts, kept, papers, peers, steps
from cells_of_queries import aligned, codes, halves, keywords, maps, shallow, tables_for_queries, trained, trained_briefly
from reports import Cells

__all__ = ["TABLES", "Cells"]

TABLES = {
    "what half the layers keep": halves,
    "methods of the papers": papers,
    "all-MiniLM-L6-v2 by size": lambda: kept(MINILM[1], "sts"),
    "all-mpnet-base-v2 by size": lambda: kept(MPNET[1], "ladder"),
    "fewer dims": lambda: cuts("Fewer dims, all layers", ["6L-32d", "6L-64d", "6L-128d"], WIDTHS),
    "fewer layers": lambda: cuts("Fewer layers, all dims", ["2L-384d", "3L-384d", "4L-384d"], DEPTHS),
    "fewer layers and dims": lambda: cuts("The ladder", ["2L-32d", "3L-64d", "4L-128d"], CUTS),
    "other ways": peers,
    "time of a step": steps,
    "aligned, three models": aligned,
    "queries by few layers": shallow,
    "bytes of a vector": codes,
    "another model's index": maps,
    "queries without layers": tables_for_queries,
    "beside keywords": keywords,
    "trained layers": trained,
    "trained briefly": trained_briefly,
    "leaderboard": leaderboard,
    "documents unseen": unseen_tables,
    "rivals": public_rivals,
    "rivals in short": public_first,
    "bytes on public tasks": public_index,
}
