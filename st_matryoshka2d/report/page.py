"""A report as one file of HTML: all of it is drawn here, and a script shows what was computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

SHARES = range(50, 101)  # percent of the score to keep: the steps of a slider


def page(panels: Sequence[Mapping[str, Any]], costs: Mapping[str, str], **words: Any) -> str:
    """Return the page: for each model a panel; `costs` are the columns to draw scores against."""
    rows = [row for panel in panels for row in panel["sizes"] if row["score"] == row["score"]]
    axes = {"score": _axis([100 * row["score"] for row in rows], ".1f")}
    for cost in costs:
        scale = np.log2 if cost == "bytes" else np.asarray
        axes[cost] = _axis([row[cost] for row in rows], ",.4g", scale)
    words |= {"shares": SHARES, "said": [(panel["answers"], panel["steps"]) for panel in panels]}
    loader = jinja2.PackageLoader("st_matryoshka2d.report", "")
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("page.html")
    return template.render(panels=panels, costs=costs, axes=axes, **words)


def _axis(values: Sequence[float], form: str, scale: Callable[..., Any] = np.asarray) -> dict[str, Any]:
    """Return a function that places a value, in percent of an axis, and the places of its ticks."""
    low, high = (scale(end(values)) for end in (min, max))
    room = 0.08 * (high - low) or 1.0
    ticks: dict[str, float] = {}

    def place(value: float) -> float:
        return round(100 * float((scale(value) - low + room) / (high - low + 2 * room)), 2)

    for value in sorted(values, reverse=True):  # the largest has a tick in any case
        if all(abs(place(value) - other) >= 12 for other in ticks.values()):
            ticks[format(value, form)] = place(value)
    return {"place": place, "ticks": ticks}
