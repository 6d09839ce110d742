"""Render pages. Each page is one file that needs no network."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from importlib.resources import files
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nsabench.errors import EnvironmentRefused
from nsabench.files import user_cache, whole
from nsabench.model.version import __version__
from nsabench.output.document import number
from nsabench.output.templates import environment
from nsabench.text import shown

if TYPE_CHECKING:
    from markupsafe import Markup

# Scripts of every page, in the order of their dependencies.
COMMON = ("data.js", "theme.js", "filters.js", "table.js", "draw.js")
KEYID = r"\b([0-9a-f]{16})([0-9a-f]{48})\b"  # a page shows the first part
ASSETS = files("nsabench.output.report").joinpath("assets")


def render(
    template: str, scripts: Iterable[str], data: Mapping[str, Any], **context: object
) -> str:
    """Return a page. Raises `EnvironmentRefused` if the extra `report` is not installed."""
    templates = environment(autoescape=True, finalize=_make_safe)
    templates.filters.update(
        ms=lambda value: "–" if value is None else f"{value:.4g} ms",
        ratio=lambda value: "–" if value is None else f"{value:.2f}×",
        tiny=lambda value: number(value, ".1e"),
        ticks=lambda text: _mark(text, r"`([^`]*)`", r"<code>\1</code>"),
        keys=lambda text: _mark(text, KEYID, r'<abbr title="\1\2">\1…</abbr>'),
    )
    return templates.get_template(template).render(
        version=__version__,
        style=_read_asset("report.css"),
        scripts=[_read_asset(name) for name in (*COMMON, *scripts)],
        charts=_read_charts(),
        vega=_bundle_scripts(),
        data=_pack(data),
        **context,
    )


def rows(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return records as columns: texts are indices into `strings`, floats have five digits."""
    records = list(records)
    columns = {key: [r[key] for r in records] for key in (records[0] if records else ())}
    texts = {key: cells for key, cells in columns.items() if any(isinstance(c, str) for c in cells)}
    strings: dict[str | None, int] = {}
    for cells in texts.values():
        for cell in cells:
            strings.setdefault(cell, len(strings))
    return {
        "count": len(records),
        "texts": {key: [strings[cell] for cell in cells] for key, cells in texts.items()},
        "numbers": {
            key: [float(f"{c:.5g}") if isinstance(c, float) else c for c in cells]
            for key, cells in columns.items()
            if key not in texts
        },
        "strings": list(strings),
    }


def _pack(data: Mapping[str, Any]) -> str:
    text = json.dumps(_make_safe(data), separators=(",", ":"), sort_keys=True, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _make_safe(data: Any) -> Any:
    """Escape invisible characters in all texts, except in markup that nsabench itself made."""
    if isinstance(data, str):
        return data if hasattr(data, "__html__") else shown(data, lines=True)
    if isinstance(data, Mapping):
        return {_make_safe(key): _make_safe(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_make_safe(value) for value in data]
    return data


def _read_asset(name: str) -> str:
    return ASSETS.joinpath(name).read_text()


def _read_charts() -> Mapping[str, Any]:
    specifications = ASSETS.joinpath("charts").iterdir()
    return {
        path.name.removesuffix(".vl.json"): json.loads(path.read_text())
        for path in sorted(specifications, key=lambda path: path.name)
    }


def draw(chart: str, points: Sequence[Mapping[str, Any]], axis: str) -> Markup:
    """Return a chart as SVG that needs no script. The x-axis shows the `length` of each point."""
    import markupsafe

    specification = json.loads(_read_asset(chart))
    specification["datasets"] = _make_safe({"points": points})
    scale = {"title": axis, "values": sorted({point["length"] for point in points})}
    specification["layer"][0]["encoding"]["x"]["axis"] |= _make_safe(scale)
    svg: str = _import_vl_convert().vegalite_to_svg(specification)
    # Show a point's label as a tooltip. The label is already escaped.
    titled = re.sub(
        r'<path aria-label="([^"]*)"([^>]*)/>', r"<path\2><title>\1</title></path>", svg
    )
    return markupsafe.Markup(titled)


def _import_vl_convert() -> ModuleType:
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise EnvironmentRefused(
            "report.html needs vl_convert, which is not installed",
            "install it with `pip install 'nsabench[report]'`, then `nsabench report RUN`.",
        ) from None
    return vl_convert


@cache
def _bundle_scripts() -> str:
    """Return the scripts that draw charts. Bundling takes over a second, so they are cached."""
    vl_convert = _import_vl_convert()
    kept = user_cache() / "vega" / f"{metadata.version('vl-convert-python')}.js"
    with suppress(OSError):
        return kept.read_bytes().decode()
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with suppress(OSError):  # without a cache the next page takes longer
        kept.parent.mkdir(parents=True, exist_ok=True)
        whole(kept, text.encode())
    return text


def _mark(text: str, pattern: str, markup: str) -> Markup:
    import markupsafe

    escaped = str(markupsafe.escape(shown(text)))
    return markupsafe.Markup(re.sub(pattern, markup, escaped))
