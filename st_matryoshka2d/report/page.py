"""A report as one file of HTML: all of it is drawn here, and a script shows what was computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np


def page(panels: Sequence[Mapping[str, Any]], costs: Mapping[str, str], **words: Any) -> str:
    """Return the page: for each model a panel; `costs` are the columns to draw scores against."""
    rows = [row for panel in panels for row in panel["sizes"] if row["score"] == row["score"]]
    axes = {"score": _axis([100 * row["score"] for row in rows], _round_ticks)}
    for cost in costs:
        axes[cost] = _axis([row[cost] for row in rows], None if cost == "bytes" else _round_ticks)
    words |= {"said": [(panel["answers"], panel["steps"]) for panel in panels]}
    loader = jinja2.PackageLoader("st_matryoshka2d.report", "")
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("page.html")
    return template.render(panels=panels, costs=costs, axes=axes, **words)


def _axis(values: Sequence[float], ticks: Callable[[float, float], Sequence[float]] | None = None) -> dict[str, Any]:
    """Return a function that places a value, in percent of an axis, and the places of its ticks.

    Without `ticks`, the axis is logarithmic, and the values themselves have ticks where there is room.
    """
    scale: Callable[..., Any] = np.log2 if ticks is None else np.asarray
    low, high = (float(scale(end(values))) for end in (min, max))
    room = 0.08 * (high - low) or 1.0

    def place(value: float) -> float:
        return round(100 * float((scale(value) - low + room) / (high - low + 2 * room)), 2)

    shown: dict[str, float] = {}
    for value in sorted(values, reverse=True) if ticks is None else ticks(low - room, high + room):
        if all(abs(place(value) - other) >= 15 for other in shown.values()):  # the largest in any case
            shown[format(value, ",.6g")] = place(value)
    return {"place": place, "ticks": shown}


def _round_ticks(low: float, high: float) -> list[float]:
    """Return three to eight round numbers between two others."""
    power = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = power * max(times for times in (1, 2, 5) if times * power <= (high - low) / 3)
    return [round(step * place, 12) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
