"""report.html: one self-contained file that asks nothing of a network."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from importlib.resources import files
from types import ModuleType
from typing import Any

from nsabench import __version__
from nsabench.errors import EnvironmentRefused
from nsabench.report import embedded
from nsabench.report.facts import Facts
from nsabench.report.sections import sections

# In the order in which they build on each other.
SCRIPTS = ("data.js", "theme.js", "filters.js", "table.js", "series.js", "charts.js", "main.js")
CHART_SUFFIX = ".vl.json"


def render(facts: Facts) -> str:
    """The page. Raises `EnvironmentRefused` where the extra `report` is not installed."""
    jinja2, vl_convert = _extra("jinja2"), _extra("vl_convert")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nsabench.report"),
        autoescape=True,  # every text of a run is foreign
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(ms=_ms, ratio=_ratio, tiny=_tiny)
    page: str = environment.get_template("page.html.j2").render(
        facts=facts,
        sections=sections(facts),
        version=__version__,
        # Package data and the bundle are ours; nothing of the run is in them.
        style=_asset("report.css"),
        scripts=[_asset(name) for name in SCRIPTS],
        charts=_charts(),
        vega=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        data=embedded.pack(facts),
    )
    return page


def _extra(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise EnvironmentRefused(
            f"report.html needs {name}, which is not installed",
            "install it with `pip install 'nsabench[report]'`, then `nsabench report RUN`.",
        ) from None


def _asset(name: str) -> str:
    return files("nsabench.report").joinpath("assets", name).read_text()


def _charts() -> Mapping[str, Any]:
    """The Vega-Lite specifications, by name."""
    folder = files("nsabench.report").joinpath("assets", "charts")
    return {
        item.name.removesuffix(CHART_SUFFIX): json.loads(item.read_text())
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.endswith(CHART_SUFFIX)
    }


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g} ms"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def _tiny(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"
