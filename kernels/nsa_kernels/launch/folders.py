"""The folder where the library keeps files between processes."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "NSA_KERNELS_CACHE"


def cache_folder() -> Path:
    """Return the folder that NSA_KERNELS_CACHE names, else ``nsa_kernels`` in the user's cache
    folder."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nsa_kernels"
