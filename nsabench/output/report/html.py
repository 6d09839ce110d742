"""What all pages share: one self-contained file each, that asks nothing of a network."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Mapping
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

# Each builds on those before it. The scripts of a page follow.
COMMON = ("data.js", "theme.js", "filters.js", "table.js", "draw.js")
ASSETS = files("nsabench.output.report").joinpath("assets")


def render(
    template: str, scripts: Iterable[str], data: Mapping[str, Any], **context: object
) -> str:
    """Return a page. Raises `EnvironmentRefused` if the extra `report` is not installed."""
    # Every text of a run is foreign.
    templates = environment(autoescape=True, finalize=_shown)
    templates.filters.update(
        ms=lambda value: "–" if value is None else f"{value:.4g} ms",
        ratio=lambda value: "–" if value is None else f"{value:.2f}×",
        tiny=lambda value: number(value, ".1e"),
        ticks=_ticks,
    )
    return templates.get_template(template).render(
        version=__version__,
        # Package data and the bundle are ours; nothing of the run is in them.
        style=_asset("report.css"),
        scripts=[_asset(name) for name in (*COMMON, *scripts)],
        charts=_charts(),
        vega=_bundle(),
        data=_pack(data),
        **context,
    )


def rows(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return records as the scripts unpack them: by column, where alike values pack well.

    Texts are given by their place among all texts, numbers in five digits, which is more than a
    timing has.
    """
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
    text = json.dumps(_shown(data), separators=(",", ":"), sort_keys=True, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _shown(data: Any) -> Any:
    """Data with all texts in it as they are shown; markup that is ours stays as it is."""
    if isinstance(data, str):
        return data if hasattr(data, "__html__") else shown(data, lines=True)
    if isinstance(data, Mapping):
        return {_shown(key): _shown(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_shown(value) for value in data]
    return data


def _asset(name: str) -> str:
    return ASSETS.joinpath(name).read_text()


def _charts() -> Mapping[str, Any]:
    specifications = ASSETS.joinpath("charts").iterdir()
    return {
        path.name.removesuffix(".vl.json"): json.loads(path.read_text())
        for path in sorted(specifications, key=lambda path: path.name)
    }


def draw(
    chart: str, datasets: Mapping[str, list[dict[str, Any]]], axis: Mapping[str, object]
) -> Markup:
    """Return a chart as SVG that needs no script. chart: the name of its specification in `assets`;
    axis: the title and the values of its x-axis."""
    import markupsafe

    specification = json.loads(_asset(chart))
    specification["datasets"] = _shown(datasets)
    x = specification["layer"][0]["encoding"]["x"]
    x["axis"] |= _shown(axis)
    svg: str = _vl_convert().vegalite_to_svg(specification)
    # A pointer over a point shows its label, which the text is escaped in.
    titled = re.sub(
        r'<path aria-label="([^"]*)"([^>]*)/>', r"<path\2><title>\1</title></path>", svg
    )
    return markupsafe.Markup(titled)


def _vl_convert() -> ModuleType:
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise EnvironmentRefused(
            "report.html needs vl_convert, which is not installed",
            "install it with `pip install 'nsabench[report]'`, then `nsabench report RUN`.",
        ) from None
    return vl_convert


@cache
def _bundle() -> str:
    """The scripts that draw charts. Bundling them takes over a second, so they are kept."""
    vl_convert = _vl_convert()
    kept = user_cache() / "vega" / f"{metadata.version('vl-convert-python')}.js"
    with suppress(OSError):
        return kept.read_bytes().decode()
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with suppress(OSError):  # without a cache the next page takes longer
        kept.parent.mkdir(parents=True, exist_ok=True)
        whole(kept, text.encode())
    return text


def _ticks(text: str) -> Markup:
    """Escape a text, and show as code what is between backticks."""
    import markupsafe

    escaped = str(markupsafe.escape(shown(text)))
    return markupsafe.Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped))
