"""Run by the Python of an image or a venv: prints what is installed there, as JSON.

It imports nothing of nsabench and only the standard library, since what it looks at is not trusted
to be what it says. Every file is held against the hash that its distribution recorded for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from importlib import metadata
from pathlib import Path


def altered(distribution: metadata.Distribution) -> list[str]:
    """Files that are missing or are not what was installed."""
    bad = []
    for file in distribution.files or []:
        if file.hash is None or file.suffix == ".pyc":
            continue  # the record itself has none; bytecode is made anew of what is looked at
        path = Path(str(file.locate()))
        try:
            with path.open("rb") as opened:
                digest = hashlib.file_digest(opened, file.hash.mode).digest()
        except OSError:
            bad.append(f"{file} is missing")
            continue
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != file.hash.value:
            bad.append(f"{file} was changed")
    return bad


def main() -> None:
    found = list(metadata.distributions())
    lock = Path(sys.prefix, "lock.txt")
    said = json.dumps(
        {
            "python": sys.version.split()[0],
            "lock_sha256": hashlib.sha256(lock.read_bytes()).hexdigest() if lock.exists() else "",
            "packages": [[d.metadata["Name"], d.version] for d in found],
            "altered": [text for d in found for text in altered(d)],
        }
    )
    sys.stdout.write(f"{said}\n")


if __name__ == "__main__":
    main()
