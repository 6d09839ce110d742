"""Makes the virtual environment of a combo, for hosts without containers."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from nsabench import programs
from nsabench.files import refuse_filled
from nsabench.images.build import SOURCES
from nsabench.images.combos import Checkout
from nsabench.images.lock import PYTHON, existing, sha256
from nsabench.machine.environment.container import COMBO_FILE

LIMIT_S = 3600.0


def make(
    checkout: Checkout,
    name: str,
    folder: Path,
    *,
    wheelhouse: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Install the lock of a combo in `folder`; return the path of its `nsabench`.

    A wheelhouse replaces all downloads. Raises `UsageError` for a folder with content or a combo
    without a lock, and `EnvironmentRefused` if uv fails.
    """
    combo = checkout.combos().get(name)
    lock = existing(checkout, name)
    refuse_filled(folder, "name another folder, or remove it.")
    uv = programs.find_uv()
    python = folder.absolute() / "bin/python"
    programs.run([*uv, "venv", "--quiet", "--python", PYTHON, folder], f"making {folder}", LIMIT_S)
    install = [*uv, "pip", "install", "--quiet", "--no-config", "--python", str(python)]
    install += ["--no-deps", "--compile-bytecode"]
    source = ["--index-strategy", "unsafe-best-match"]
    with ExitStack() as stack:
        if wheelhouse is not None:
            # A cache on the same disk, so that files are linked, and uv's own keeps no gigabytes.
            cache = stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".uv-"))
            install += ["--cache-dir", cache, "--link-mode", "hardlink"]
            source = ["--no-index", "--find-links", str(wheelhouse)]
        elif combo.index:
            source += ["--extra-index-url", combo.index]
        say(f"installing {lock.name}")
        locked = ["--require-hashes", "--only-binary", ":all:", "--requirements", str(lock)]
        programs.run([*install, *source, *locked], f"installing {lock.name}", LIMIT_S)
        say("installing nsabench")
        # A copy, since setuptools writes into the folder that it builds.
        copied = stack.enter_context(tempfile.TemporaryDirectory())
        for part in SOURCES:
            origin, target = checkout.root / part, Path(copied) / part
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
                shutil.copytree(origin, target, ignore=ignored)
            else:
                shutil.copyfile(origin, target)
        built = ["--no-index", "--no-build-isolation", copied, f"{copied}/kernels"]
        programs.run([*install, *built], "installing nsabench", LIMIT_S)
    description = {
        "runtime": "venv",
        "combo": name,
        "revision": checkout.revision(),
        "lock_sha256": sha256(lock),
    }
    (folder / COMBO_FILE).write_text(json.dumps(description, indent=1) + "\n")
    return folder / "bin/nsabench"
