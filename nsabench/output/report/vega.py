"""The scripts that draw charts, as one text; bundling them takes over a second of a CPU."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from nsabench.files import user_cache, whole

SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def bundle(vl_convert: ModuleType) -> str:
    """What `vl_convert` bundles: the same for each of its versions, so it is made once for all."""
    path = _kept(vl_convert.__version__)
    with suppress(OSError):
        digest, _, script = path.read_bytes().partition(b"\n")
        # One that was cut off, or changed by mistake, is made anew.
        if hashlib.sha256(script).hexdigest().encode() == digest:
            return script.decode()
    text: str = vl_convert.javascript_bundle(SNIPPET)
    script = text.encode()
    with suppress(OSError):  # without it the next page takes longer
        path.parent.mkdir(parents=True, exist_ok=True)
        whole(path, hashlib.sha256(script).hexdigest().encode() + b"\n" + script)
    return text


def _kept(version: str) -> Path:
    """No worker in its sandbox writes there."""
    snippet = hashlib.sha256(SNIPPET.encode()).hexdigest()[:8]
    return user_cache() / "vega" / f"{version}-{snippet}.js"
