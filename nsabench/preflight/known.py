"""Keeps what was compiled, so that a later preflight compiles only what changed.

Failures are not kept and are tried again.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from nsabench import limits, reading
from nsabench.files import whole
from nsabench.model.vocabulary import Status
from nsabench.preflight.messages import Built, Launch

KEPT = (Status.OK, Status.OUT_OF_MEMORY)
_CONTENT = re.compile("[0-9a-f]{64}")  # it becomes a path


class Known:
    """folder: None: nothing is kept or found."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, launch: Launch) -> Built | None:
        path = self._path(launch)
        if path is None:
            return None
        try:
            built = Built.model_validate_json(reading.read(path, limits.MATRIX))
        except (OSError, reading.OutOfBounds, ValidationError):
            return None
        return built if built.content == launch.content else None

    def keep(self, launch: Launch, built: Built) -> None:
        """Keep the result of a launch, if it was built from that content.

        After a lost worker, the next one records the launch from files that may have changed.
        """
        path = self._path(launch)
        if path is None or built.status not in KEPT or built.content != launch.content:
            return
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            whole(path, built.model_dump_json().encode())

    def _path(self, launch: Launch) -> Path | None:
        if self._folder is None or not _CONTENT.fullmatch(launch.content):
            return None
        return self._folder / launch.content[:2] / f"{launch.content}.json"
