"""What all pages share: one self-contained file each, that asks nothing of a network."""

from __future__ import annotations

import base64
import gzip
import importlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from types import ModuleType
from typing import Any

from nsabench.errors import EnvironmentRefused
from nsabench.model.version import __version__
from nsabench.output.report.vega import bundle
from nsabench.text import shown

# In the order in which they build on each other; those of a page follow.
COMMON = ("data.js", "theme.js", "filters.js", "table.js", "draw.js")
CHART_SUFFIX = ".vl.json"


def render(
    template: str, scripts: Iterable[str], data: Mapping[str, Any], **context: object
) -> str:
    """A page. Raises `EnvironmentRefused` where the extra `report` is not installed."""
    jinja2, vl_convert = _extra("jinja2"), _extra("vl_convert")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nsabench.output.report"),
        autoescape=True,  # every text of a run is foreign
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(ms=_ms, ratio=_ratio, tiny=_tiny, ticks=_ticks)
    page: str = environment.get_template(template).render(
        version=__version__,
        # Package data and the bundle are ours; nothing of the run is in them.
        style=_asset("report.css"),
        scripts=[_asset(name) for name in (*COMMON, *scripts)],
        charts=_charts(),
        vega=bundle(vl_convert),
        data=_pack(data),
        **context,
    )
    return page


def rows(
    records: Iterable[Mapping[str, Any]], texts: Sequence[str], numbers: Sequence[str]
) -> dict[str, Any]:
    """Records as the scripts unpack them: by column, where neighbours are alike and pack well;
    texts by their place among all texts, numbers short."""
    records = list(records)
    strings: dict[str, int] = {}

    def text(value: str | None) -> int | None:
        return None if value is None else strings.setdefault(value, len(strings))

    return {
        "count": len(records),
        "texts": {key: [text(r[key]) for r in records] for key in texts},
        "numbers": {key: [short(r[key]) for r in records] for key in numbers},
        "strings": list(strings),
    }


def short(value: float | None) -> float | None:
    """Five digits, which is more than a timing has."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.5g}")


def _pack(data: Mapping[str, Any]) -> str:
    """Base64 of gzipped JSON. The same data gives the same text."""
    text = json.dumps(_shown_within(data), separators=(",", ":"), sort_keys=True, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _shown(value: Any) -> Any:
    """What a template prints; of markup that is ours, and of numbers, as it is."""
    return shown(value, lines=True) if isinstance(value, str) and not _is_markup(value) else value


def _is_markup(value: str) -> bool:
    return hasattr(value, "__html__")


def _shown_within(data: Any) -> Any:
    """Data for the scripts of a page, and all texts in it as they are shown."""
    if isinstance(data, str):
        return shown(data, lines=True)
    if isinstance(data, Mapping):
        return {_shown_within(key): _shown_within(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_shown_within(value) for value in data]
    return data


def _extra(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise EnvironmentRefused(
            f"report.html needs {name}, which is not installed",
            "install it with `pip install 'nsabench[report]'`, then `nsabench report RUN`.",
        ) from None


def _asset(name: str) -> str:
    return files("nsabench.output.report").joinpath("assets", name).read_text()


def _charts() -> Mapping[str, Any]:
    """The Vega-Lite specifications, by name."""
    folder = files("nsabench.output.report").joinpath("assets", "charts")
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


def _ticks(text: str) -> Any:
    """What stands between backticks as code; all of it is escaped first."""
    markupsafe = _extra("markupsafe")
    escaped = str(markupsafe.escape(shown(text)))
    return markupsafe.Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped))
