"""Caches the times of installed baselines on this machine, so that `nsabench check` is quick."""

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

ATTEMPT = (1 << 31) - 1  # No process has it, so cached samples form no ratio.


def folder() -> Path:
    return user_cache() / "baselines"


class KnownBaselines:
    """Observations of installed baselines, by machine, versions, sources and case."""

    def __init__(self, described: Described, sources: Mapping[str, str], *, fresh: bool) -> None:
        self.described = described
        # Two devices of the same kind differ in speed.
        self._machine = machine_of("baselines", described)
        self._sources = sources
        self._fresh = fresh

    def _find_file(self, case: Case, info: ImplementationInfo) -> Path:
        models = [model.model_dump_json() for model in (self.described, case, info)]
        # A CPU reads twice its last-level cache before each sample.
        parts = (self._machine, __version__, models, self._sources[info.source], last_level_bytes())
        return folder() / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"

    def keeps(self, info: ImplementationInfo) -> bool:
        """Whether it is an installed baseline. The user's own code changes with each save."""
        return info.role is Role.BASELINE and info.source in self._sources

    def observation(self, case: Case, info: ImplementationInfo) -> Observation | None:
        if self._fresh or not self.keeps(info):
            return None
        try:
            observation = Observation.model_validate_json(self._find_file(case, info).read_bytes())
        except (OSError, ValidationError):  # none, or torn
            return None
        return observation.model_copy(update={"attempt": ATTEMPT})

    def keep(self, case: Case, info: ImplementationInfo, observation: Observation) -> None:
        if self.keeps(info) and observation.status in (Status.OK, Status.UNSUPPORTED):
            content = observation.model_dump_json()
            with suppress(OSError):  # without a cache it takes longer, and is as right
                folder().mkdir(mode=0o700, parents=True, exist_ok=True)
                whole(self._find_file(case, info), content.encode())
