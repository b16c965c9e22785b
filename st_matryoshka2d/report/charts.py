"""The charts of a report. The page gives them their rows and signals, and its style sheet their inks, dark or light."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

AXES = {"milliseconds_per_text": "milliseconds per text", "num_layers": "layers", "bytes": "bytes per vector"}

# Okabe and Ito's colours, which most colour-blind readers can distinguish; shapes tell the models apart in grey.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_SHAPES = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross"]

# Black has more contrast than white from this part of viridis on, by WCAG 2.
_BLACK_FROM = 0.43

# What the page writes about a size: under the pointer, and for a screen reader.
_TOLD: dict[str, Any] = {"tooltip": alt.Tooltip("about:N"), "description": alt.Description("text:N")}

_IS_CHOSEN, _IS_FOCUSED = "indexof(chosen, datum.id) >= 0", "datum.id === focused"


def heat_map() -> dict[str, Any]:
    """Return the chart of scores by layers (downwards) and dims (to the right), each cell with its number."""
    cells = _scored().encode(
        alt.X("dim:O", title="dimensions", axis=alt.Axis(labelAngle=0), scale=alt.Scale(padding=0.05)),
        alt.Y("num_layers:O", title="layers", sort="ascending", scale=alt.Scale(padding=0.05)),
        **_TOLD,
    )
    range_ = alt.Scale(scheme="viridis", domainMin=alt.ExprRef("low"), domainMax=alt.ExprRef("high"))
    numbers = cells.mark_text(
        fontSize=alt.ExprRef("clamp(bandwidth('x') / 3.9, 7, 13)"),
        fontWeight=alt.ExprRef(f"{_IS_CHOSEN} ? 'bold' : 'normal'"),
        fill=alt.ExprRef(f"(datum.percent - low) / (high - low) < {_BLACK_FROM} ? 'white' : 'black'"),
    )
    layers = [
        cells.mark_rect().encode(alt.Color("percent:Q", scale=range_, legend=None)),
        *_outlines(cells.mark_rect(fillOpacity=0)),
        numbers.encode(text=alt.Text("percent:Q", format=".2f")),
    ]
    return _finished(layers, alt.Step(30), low=0, high=1)


def against(cost: str, series: Sequence[str], *, coloured_lines: bool) -> dict[str, Any]:
    """Return the chart of scores against a cost, with a line through the sizes on the front of each view.

    Colours show the series, or, if there is only one, its dims, or its layers where the cost depends on dims. A line that
    passes through several series has none of their colours.
    """
    doubling = {"type": "log", "base": 2} if cost == "bytes" else {"zero": False}
    points = _scored().encode(
        alt.X(
            f"{cost}:Q",
            title=AXES[cost],
            axis=alt.Axis(
                format="," if cost == "bytes" else "~g", tickCount=6, labelOverlap=True, labelSeparation=8, labelBound=True
            ),
            scale=alt.Scale(nice=False, padding=30, **doubling),
        ),
        alt.Y("percent:Q", title=None, axis=alt.Axis(tickCount=6), scale=alt.Scale(zero=False, padding=26)),
        **_TOLD,
    )
    looks = _looks_of_series(series) if len(series) > 1 else [_shades("num_layers" if cost == "bytes" else "dim")]
    on_front = f"datum.front_{'bytes' if cost == 'bytes' else 'time'}"
    line = points.transform_filter(on_front).mark_line(strokeWidth=1.5)
    dots = points.mark_point(filled=True, size=75, opacity=alt.ExprRef(f"{on_front} ? 1 : 0.35"))
    names = points.transform_filter(_IS_CHOSEN).mark_text(dy=-17, fontWeight="bold", fontSize=12)
    layers = [
        line.encode(alt.Detail("view:N"), *(looks[:1] if coloured_lines else [])).properties(name="front"),
        dots.encode(*looks).properties(name="dots"),
        *_outlines(points.mark_point(filled=True, fillOpacity=0, size=230)),
        # Names of the sizes of several models would lie over each other.
        *([] if len(series) > 1 else [names.encode(text="name:N")]),
    ]
    return _finished(layers, 300)


def _scored() -> alt.Chart:
    return alt.Chart(alt.NamedData("sizes")).transform_filter("isValid(datum.percent)")


def _looks_of_series(series: Sequence[str]) -> list[Any]:
    """Return a colour and a shape for each model."""
    legend = alt.Legend(orient="bottom", title=None, columns=1, labelLimit=320, symbolOpacity=1)
    channels = ((alt.Color, _COLOURS), (alt.Shape, _SHAPES))
    return [of("series:N", scale=alt.Scale(domain=list(series), range=values), legend=legend) for of, values in channels]


def _shades(column: str) -> alt.Color:
    """Return a shade for each number of layers or dims, the largest darkest."""
    title = {"num_layers": "layers", "dim": "dimensions"}[column]
    legend = alt.Legend(orient="bottom", direction="horizontal", title=title, symbolOpacity=1)
    scale = alt.Scale(scheme=alt.SchemeParams("viridis", extent=[0.92, 0]))
    return alt.Color(f"{column}:O", sort="ascending", scale=scale, legend=legend)


def _outlines(marks: alt.Chart) -> list[alt.Chart]:
    """Return a light and a dark outline of the recommended sizes, to be seen on every colour, and one of the focus."""
    found, here = marks.transform_filter(_IS_CHOSEN), marks.transform_filter(_IS_FOCUSED)
    looks = [(found, "white", 6, []), (found, "black", 3, []), (here, "white", 4, []), (here, "black", 2, [3, 3])]
    return [
        one.encode(stroke=alt.value(ink), strokeWidth=alt.value(width), strokeDash=alt.value(dash))
        for one, ink, width, dash in looks
    ]


def _finished(layers: Sequence[alt.Chart], height: Any, **known: Any) -> dict[str, Any]:
    """Return a chart as Vega-Lite, as wide as its place, with signals that the page sets."""
    signals = [alt.param(name=name, value=value) for name, value in {"chosen": [], "focused": "", **known}.items()]
    config: dict[str, Any] = {
        "view": {"stroke": None},
        "axis": {"domain": False, "ticks": False, "labelPadding": 6, "labelFontSize": 12, "titleFontSize": 12},
        "axisBand": {"grid": False},
        "axisY": {"titlePadding": 10},
        "legend": {"labelFontSize": 12, "titleFontSize": 12},
        "font": "system-ui, sans-serif",
    }
    fitted: dict[str, Any] = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    whole = alt.layer(*layers).properties(height=height, background="transparent", **fitted)
    made: dict[str, Any] = whole.add_params(*signals).configure(**config).to_dict()
    made.pop("$schema")  # the address of a schema, which nobody needs to read the page
    return made
