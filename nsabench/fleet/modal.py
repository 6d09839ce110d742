"""A fleet on rented GPUs: the app that runs it on Modal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from nsabench.errors import UsageError
from nsabench.files import whole
from nsabench.fleet.folder import FleetFolder

APP = "app.py"
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,60}")


@dataclass(frozen=True)
class Modal:
    """How the app is to be. gpu: as Modal calls it, such as H100 or `H100!` for no better one;
    combo: whose lock the image is made of; checkout: the sources of nsabench; index: where its
    torch comes from beside PyPI, if anywhere; secret: one with NSABENCH_SIGNING_KEY, if any."""

    gpu: str
    combo: str
    checkout: str
    index: str = ""
    secret: str = ""
    volume: str = "nsabench-results"
    cpus: int = 8
    memory_mb: int = 32_768
    timeout_s: int = 6 * 3600


def write(folder: FleetFolder, how: Modal) -> None:
    """Write app.py into a fleet's folder. Raises `UsageError` for a name that is none."""
    name = folder.path.name
    for word in (name, how.gpu.removesuffix("!"), how.combo, how.volume, how.secret or "none"):
        if not _WORD.fullmatch(word):
            raise UsageError(
                f"{word!r} is no name for Modal", "use letters, digits, '.', '_', '-', '+' and ':'."
            )
    if '"' in how.checkout or "\\" in how.checkout:
        raise UsageError(f"{how.checkout} has a quote in its name", "move the checkout.")
    text = (files("nsabench.fleet") / "templates" / "modal_app.txt").read_text()
    for word, value in {
        "NAME": name,
        "SHARDS": str(folder.read().shards),
        "SECRETS": f'["{how.secret}"]' if how.secret else "[]",
        "CHECKOUT": how.checkout,
        "VOLUME": how.volume,
        "COMBO": how.combo,
        "INDEX": f"--extra-index-url {how.index} " if how.index else "",
        "GPU": how.gpu,
        "CPUS": str(how.cpus),
        "MEMORY_MB": str(how.memory_mb),
        "TIMEOUT_S": str(how.timeout_s),
    }.items():
        text = text.replace(f"@{word}@", value)
    whole(folder.path / APP, text.encode())
