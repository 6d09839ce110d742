"""An Apptainer definition of a combo, made from the Dockerfile, for hosts without a daemon or root.

Apptainer has stages, too, but copies between them keep no times and owners; all that the stages do
is done in one, in the order of the Dockerfile.
"""

from __future__ import annotations

import json
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.images import context, dockerfile
from nsabench.images.combos import Checkout
from nsabench.images.lock import sha256
from nsabench.images.revision import revision

TARGET = "nsabench"
CONTEXT = "context"


def write(
    checkout: Checkout, name: str, folder: Path, *, base: str = "", wheelhouse: Path | None = None
) -> Path:
    """Write `COMBO.def` and the folder that it copies from; returns the definition.

    base: what the Dockerfile would take; a name of a registry, or `docker-daemon:…` and the like.
    Raises `UsageError` where `folder` has something in it, or the combo has no lock.
    """
    combos = checkout.combos()
    combo = combos.get(name)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", "name another folder, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as packed:
        context.pack(checkout, name, wheelhouse, False, packed)
        with tarfile.open(fileobj=packed) as tar:
            tar.extractall(folder / CONTEXT, filter="data")
    base = base or combos.bases.runtime
    values = {
        "BASE": base,
        "BASE_DIGEST": base.partition("@")[2] or "unknown",
        "COMBO": name,
        "INDEX": combo.index,
        "KERNELS": "/src/kernels" if combo.kernels else "",
        "REVISION": revision(checkout.root),
        "LOCK_SHA256": sha256(checkout.lock(name)),
    }
    text = (checkout.docker / "Dockerfile").read_text()
    definition = folder / f"{name}.def"
    definition.write_text(define(text, folder / CONTEXT, base, values))
    return definition


def define(text: str, copied: Path, base: str, values: Mapping[str, str]) -> str:
    """The definition. copied: the context, which patterns of COPY are looked up in."""
    bootstrap, _, source = base.rpartition(":") if base.startswith("docker-") else ("", "", base)
    post: list[str] = ["set -eu"]
    post += [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    labels: dict[str, str] = {}
    variables: dict[str, str] = {}
    started: list[str] = []
    for stage in dockerfile.stages(text):
        post.append(f"# {stage.name}")
        for instruction in stage.instructions:
            match instruction.word:
                case "RUN":
                    post.append(f"( {instruction.text} )")
                case "COPY":
                    post += _copy(instruction, copied)
                case "LABEL":
                    labels |= instruction.pairs(values)
                case "ENV":
                    variables |= instruction.pairs(values)
                case "ENTRYPOINT":
                    started = json.loads(instruction.text)
        if stage.name == TARGET:
            break
    post.append(f"rm -rf /trees /build /build-torch /src /{CONTEXT}")
    sections = {
        "files": [f"{CONTEXT} /{CONTEXT}"],
        "post": post,
        "environment": [f'export {name}="{value}"' for name, value in variables.items()],
        "labels": [f"{name} {value}" for name, value in labels.items()],
        "runscript": [f'exec {shlex.join(started)} "$@"'],
    }
    head = f"Bootstrap: {bootstrap or 'docker'}\nFrom: {source}\n"
    return head + "".join(
        f"\n%{name}\n" + "".join(f"    {line}\n" for line in lines)
        for name, lines in sections.items()
    )


def _copy(instruction: dockerfile.Instruction, copied: Path) -> Iterator[str]:
    options = [word for word in instruction.words() if word.startswith("--")]
    *sources, target = [word for word in instruction.words() if not word.startswith("--")]
    if any(option.startswith("--from=") for option in options):
        # The link that stands for the environment while it is built gives way to the environment.
        yield "if [ -L /opt/nsabench ]; then rm /opt/nsabench; fi"
        yield f"cp -a {sources[0]}. {target}"
        return
    yield f"mkdir -p {target}"
    for source in sources:
        for found in sorted(copied.glob(source.strip("/"))):
            inside = f"/{CONTEXT}/{found.relative_to(copied)}"
            yield f"cp -a {inside}{'/.' if found.is_dir() else ''} {target}"
            for option in options:
                if option.startswith("--chown=") and found.is_dir():
                    owned = " ".join(f"{target}{part.name}" for part in sorted(found.iterdir()))
                    # Without root there may be no such user; a run there is the caller, anyway.
                    yield f"chown {option.removeprefix('--chown=')} {owned} || true"
