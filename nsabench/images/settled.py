"""An image whose digest hangs on what is in it, and not on when or where it was built.

A builder writes times and the names of its intermediate images into the configuration of an image,
and the digest of that is the image's. It is written anew without them; no layer is touched.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nsabench.errors import UsageError

EPOCH = "SOURCE_DATE_EPOCH"  # https://reproducible-builds.org/specs/source-date-epoch/
UNKNOWN = 315532800  # 1980, as the files of an image
OF_ITS_BUILD = ("Image", "Hostname", "Domainname")
FILLED = ("COPY", "ADD")


def time_of(root: Path) -> datetime:
    """When what is built is from: SOURCE_DATE_EPOCH, else the time of the commit, else 1980.

    Raises `UsageError` for a SOURCE_DATE_EPOCH that is no time.
    """
    given = os.environ.get(EPOCH, "")
    if not given:
        words = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            given = str(UNKNOWN)
        else:
            given = done.stdout.strip()
    try:
        return datetime.fromtimestamp(int(given), UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{EPOCH} is {given!r}, which is no time", "give seconds since 1970, or leave it away."
        ) from None


def settle(
    client: Any, image: str, when: datetime, say: Callable[[str], None] = lambda line: None
) -> str:
    """Let the tag name the same layers under a configuration that says `when`. Returns its id.

    A daemon that takes no image without its layers is left with the one that was built, and that is
    said.
    """
    from docker.errors import APIError, ImageLoadError

    built = client.images.get(image)
    content = _configuration(built.attrs, built.history(), when)
    digest = hashlib.sha256(content).hexdigest()
    if built.id == f"sha256:{digest}":
        return str(built.id)
    layers = [f"{n}/layer.tar" for n in range(len(built.attrs["RootFS"]["Layers"]))]
    named = [{"Config": f"{digest}.json", "RepoTags": [image], "Layers": layers}]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in (
            (f"{digest}.json", content),
            # The daemon has the layers, and looks for files of those alone that it lacks.
            ("manifest.json", json.dumps(named).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    try:
        client.images.load(packed.getvalue())
    except (APIError, ImageLoadError) as error:
        say(f"its digest hangs on the time of its build: {' '.join(str(error).split())[:200]}")
    return str(client.images.get(image).id)


def _configuration(
    built: Mapping[str, Any], history: Sequence[Mapping[str, Any]], when: datetime
) -> bytes:
    """As the OCI image specification has it, with its keys in one order."""
    layers, said = built["RootFS"]["Layers"], when.strftime("%Y-%m-%dT%H:%M:%SZ")
    steps: list[dict[str, Any]] = [
        {"created": said, "created_by": step["CreatedBy"], "comment": step["Comment"]}
        for step in reversed(history)
    ]
    for step, of in zip(steps, reversed(history), strict=True):
        instruction = of["CreatedBy"].rpartition("#(nop)")[2].split()[:1]
        if not of["Size"] and not (instruction and instruction[0] in FILLED):
            step["empty_layer"] = True
    whole = {
        "architecture": built["Architecture"],
        "os": built["Os"],
        "created": said,
        "config": {name: v for name, v in built["Config"].items() if name not in OF_ITS_BUILD},
        "rootfs": {"type": "layers", "diff_ids": layers},
    }
    # Which step made which layer is told by sizes alone; a history that does not fit is none.
    if sum("empty_layer" not in step for step in steps) == len(layers):
        whole["history"] = steps
    return json.dumps(whole, sort_keys=True).encode()
