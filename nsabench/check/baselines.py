"""What baselines did earlier on this machine, so that a person need not wait for it again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from nsabench.files import user_cache, whole
from nsabench.machine.cpu_caches import last_level_bytes
from nsabench.machine.environment.identity import machine_of
from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.measurement import Observation
from nsabench.model.plan import ImplementationInfo
from nsabench.model.version import __version__
from nsabench.model.vocabulary import Role, Status

ATTEMPT = (1 << 31) - 1  # of no process: samples of two processes form no ratio


def folder() -> Path:
    return user_cache() / "baselines"


class KnownBaselines:
    """Outcomes of installed baselines, kept for a machine, its versions, the sources, the case."""

    def __init__(self, described: Described, sources: Mapping[str, str], *, fresh: bool) -> None:
        self.described = described
        # Two devices of a kind have times of their own.
        self._machine = machine_of("baselines", described)
        self._sources = sources
        self._fresh = fresh

    def _file(self, case: Case, info: ImplementationInfo) -> Path:
        models = [model.model_dump_json() for model in (self.described, case, info)]
        # Twice as much as the last-level cache is read before each sample on a CPU.
        parts = (self._machine, __version__, models, self._sources[info.source], last_level_bytes())
        return folder() / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"

    def keeps(self, info: ImplementationInfo) -> bool:
        """Whether it is an installed baseline: the user's own is another with each save."""
        return info.role is Role.BASELINE and info.source in self._sources

    def observation(self, case: Case, info: ImplementationInfo) -> Observation | None:
        """Return what was measured earlier of a baseline, if it was."""
        if self._fresh or not self.keeps(info):
            return None
        try:
            observation = Observation.model_validate_json(self._file(case, info).read_bytes())
        except (OSError, ValidationError):  # none, or torn
            return None
        return observation.model_copy(update={"attempt": ATTEMPT})

    def keep(self, case: Case, info: ImplementationInfo, observation: Observation) -> None:
        """Keep what an undisturbed baseline did, if it says something of every other time."""
        if self.keeps(info) and observation.status in (Status.OK, Status.UNSUPPORTED):
            content = observation.model_dump_json()
            with suppress(OSError):  # without a cache it takes longer, and is as right
                folder().mkdir(mode=0o700, parents=True, exist_ok=True)
                whole(self._file(case, info), content.encode())
