"""A report as one file of HTML, with its data, its style and all code inside: nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files

import altair as alt
import vl_convert

from st_matryoshka2d.report.charts import against, heat_map
from st_matryoshka2d.report.views import View

SHARE = 97.0  # percent, where the slider stands at first


def page(title: str, views: Sequence[View], time: str) -> str:
    """Return the page of some views; `time` is the column that all of them have for the time of a size."""
    series = [name for view in views for name in view.series]
    coloured = len(series) > 1 and all(len(view.series) == 1 for view in views)
    fronts = {name: against(cost, series, coloured_lines=coloured) for name, cost in (("time", time), ("bytes", "bytes"))}
    charts = {"heat_map": heat_map(), **fronts}
    data = {"title": title, "share": SHARE, "time": time, "charts": charts}
    data |= {"series": series, "views": [view.to_json() for view in views]}
    parts = {"title": escape(title), "style": _part("page.css"), "data": _in_script(json.dumps(data, allow_nan=False))}
    parts |= {"vega": _vega(), "code": _part("page.js")}
    html = _part("page.html")
    for name in ("title", "style", "data", "code", "vega"):  # the library last: what it holds is never searched
        html = html.replace(f"<!-- {name} -->", parts[name])
    return html


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _in_script(text: str) -> str:
    """Write JSON so that no text in it ends the element that holds it."""
    return text.replace("<", "\\u003c")


@cache  # a second for each bundle
def _vega() -> str:
    """Return Vega, Vega-Lite and vega-embed in the version that Altair writes for."""
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
    return bundle
