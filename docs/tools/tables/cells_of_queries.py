"""The cells of the tables on small query sides."""

from __future__ import annotations

from reports import Cells, reported

__all__ = ["trained", "trained_briefly"]

BRIEFLY = [
    *[("all-MiniLM-L6-v2, 3 of 6 layers", "all-MiniLM-L6-v2-3L", texts) for texts in (800, 12_800, 50_870)],
    ("all-mpnet-base-v2, 6 of 12 layers", "all-mpnet-base-v2-6L", 6_400),
    ("multilingual-e5-small, 6 of 12 layers", "multilingual-e5-small-6L", 12_800),
]


def trained() -> Cells:
    """Return what three trained layers keep of search, by steps and dims."""
    table = of_training("all-MiniLM-L6-v2-3L", 50_870)
    return [table[""], *([step, *table[step]] for step in ("0", "200", "400", "600", "800"))]


def trained_briefly() -> Cells:
    """Return what trained layers keep of search with all dims after up to 200 steps, by model and texts."""
    rows = [["", "texts", "0 steps", "100 steps", "200 steps"]]
    for name, cut, texts in BRIEFLY:
        table = of_training(cut, texts)
        rows.append([name, f"{texts:,}", *(table.get(step, [""])[0] for step in ("0", "100", "200"))])
    return rows


def of_training(cut: str, texts: int) -> dict[str, list[str]]:
    """Return the share of search by steps of training an aligned cut on texts."""
    return reported(f"trained_queries/{cut}-aligned-distance-{texts}.md")
