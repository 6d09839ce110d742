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
from nsabench.model.measurement import Outcome
from nsabench.model.plan import ImplementationInfo
from nsabench.model.version import __version__
from nsabench.model.vocabulary import Role, Status

SESSION = (1 << 31) - 1  # that of no process: samples of two processes form no ratio


def folder() -> Path:
    return user_cache() / "baselines"


class KnownBaselines:
    """Outcomes of baselines, kept for a machine, its versions, the sources and the case."""

    def __init__(self, described: Described, sources: Mapping[str, str], *, fresh: bool) -> None:
        """sources: of what is installed, with their digests; of others nothing is kept."""
        self.described = described
        # Of two devices of a kind each has its own times.
        self._machine = machine_of("baselines", described)
        self._sources = sources
        self._fresh = fresh

    def _key(self, case: Case, info: ImplementationInfo) -> str:
        parts = (
            self._machine,
            self.described.model_dump_json(),
            __version__,
            case.model_dump_json(),
            info.model_dump_json(),
            self._sources[info.source],
            str(last_level_bytes()),  # of which twice as much is read before each sample on a CPU
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def keeps(self, info: ImplementationInfo) -> bool:
        """Whether it is a baseline that is installed: the user's own is another with each save."""
        return info.role is Role.BASELINE and info.source in self._sources

    def outcome(self, case: Case, info: ImplementationInfo) -> Outcome | None:
        """What was measured earlier of a baseline, if it was."""
        if self._fresh or not self.keeps(info):
            return None
        try:
            content = (folder() / f"{self._key(case, info)}.json").read_bytes()
            outcome = Outcome.model_validate_json(content)
        except (OSError, ValidationError):  # none, or torn
            return None
        return outcome.model_copy(update={"session": SESSION})

    def keep(self, case: Case, info: ImplementationInfo, outcome: Outcome) -> None:
        """Keep what a baseline did, undisturbed, if that says something of every other time."""
        if self.keeps(info) and outcome.status in (Status.OK, Status.UNSUPPORTED):
            content = outcome.model_copy(update={"log": ""}).model_dump_json()
            with suppress(OSError):  # without a cache it takes longer, and is as right
                folder().mkdir(mode=0o700, parents=True, exist_ok=True)
                whole(folder() / f"{self._key(case, info)}.json", content.encode())
