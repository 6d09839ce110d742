"""Whom to blame where it was the supervisor itself that was killed, and to spare the next one.

A killed process leaves no word but what it had begun (`model.journal.Begun`). Whoever stopped it
from outside, a person or a scheduler, is no fault of a kernel. So where the sandbox kept signals
from kernels, one such death is forgiven; where it did not, none is. Whom the worker named is only a
suspect, since who shares its process may have forged that: a baseline is held guilty only by a
death while it was measured alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nsabench.execution.supervisor.executor import GroupLost
from nsabench.model.journal import Begun, Contents
from nsabench.model.vocabulary import PassName, Status

SIGNALS = "signals"  # in what a worker says of its sandbox


@dataclass(frozen=True)
class Killed:
    """What was begun in each process that was killed while it measured one case in one pass.

    forgiven: how many such deaths say nothing of whom was measured.
    """

    begun: Sequence[Begun] = ()
    forgiven: int = 0

    @classmethod
    def of(cls, contents: Contents, name: PassName, case_id: str) -> Killed:
        held = contents.headers[-1].described.sandbox if contents.headers else None
        begun = contents.killed_in(name, case_id)
        return cls(begun, int(SIGNALS in (held or "")))

    def guilty(self, pending: Collection[str], judged: Collection[str]) -> list[str]:
        """Whom the deaths speak against. judged: those for whom being named is enough."""
        return [name for name in pending if self._is_guilty(name, by_name=name in judged)]

    def _is_guilty(self, name: str, *, by_name: bool) -> bool:
        alone = any(one.implementations == [name] for one in self.begun)
        named = sum(one.implementation == name for one in self.begun)
        enough = len(self.begun) > self.forgiven
        return (alone and enough) or (by_name and named > self.forgiven)

    def unexplained(self, guilty: Collection[str]) -> bool:
        """Whether there were more deaths than are forgiven in which none of these had a part."""
        others = [one for one in self.begun if not set(guilty) & set(one.implementations)]
        return len(others) > self.forgiven

    def lost(self, name: str = "") -> GroupLost:
        """What the deaths mean for one, or for all that were measured together."""
        last = [one for one in self.begun if name in ("", one.implementation, *one.implementations)]
        times = "" if len(last) == 1 else f" {len(last)} times"
        phase = last[-1].phase or "start"
        who = "it was" if name else "they were"
        reason = f"nsabench itself was killed{times} while {who} measured (last during {phase})"
        reason += "; it is not run again" if name else ""
        return GroupLost(name, Status.CRASHED, reason, "", phase=phase)


NEVER = Killed()
