"""Writing so that a reader sees a whole file or none."""

from __future__ import annotations

from pathlib import Path

from nsabench.errors import UsageError
from nsabench.files import REFUSED, whole


def replace(path: Path, text: str) -> Path:
    """Raises `UsageError` for a path that cannot be, and `OSError` as `writing` takes it up."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole(path, text.encode())
    except OSError as error:
        if error.errno in REFUSED:
            error.filename = str(path)  # a write does not say it
            raise
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", "name a place that can."
        ) from None
    return path
