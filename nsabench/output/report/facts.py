import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from nsabench import limits, reading
from nsabench.checks import Effect, Finding
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.evidence.manifest.seal import brief_shards
from nsabench.evidence.manifest.statement import Trust
from nsabench.machine import doctor
from nsabench.machine.doctor import MachineProblem
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.summary import summarise
from nsabench.model.log import Log
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import Direction, Purpose, Role
from nsabench.output.standing import versions
from nsabench.running.folder import HEAD, RunFolder
from nsabench.signing import Signer
from nsabench.verdicts import break_even, threshold
from nsabench.verdicts.attempts import CaseState, states_of
from nsabench.verdicts.break_even import BreakEven
from nsabench.verdicts.results import Results, RunLog, assemble
from nsabench.verdicts.threshold import Decision

MOST_OPS = 3  # a title names at most this many ops


@dataclass(frozen=True)
class Facts:
    """What the reports show of a run. `signer`, if any, will sign the run after the reports."""

    folder: RunFolder
    plan: Plan
    parts: Sequence[RunLog]
    results: Results
    signer: Signer | None = None

    @classmethod
    def read(cls, path: Path, results: Results | None = None, signer: Signer | None = None) -> Self:
        """Read a run. Raises `UsageError` if nothing was measured."""
        folder = RunFolder.existing(path)
        plan = Plan.read(folder.plan)
        parts = folder.parts()
        if not any(part.log.sessions for part in parts):
            raise UsageError(
                f"{path} has no measurement yet", f"resume with `nsabench all --resume {path}`."
            )
        return cls(folder, plan, parts, results or assemble(plan.run_id, parts), signer)

    @property
    def records(self) -> Sequence[Record]:
        return self.results.records

    @cached_property
    def candidates(self) -> list[Record]:
        return [r for r in self.records if r.role is Role.CANDIDATE]

    @cached_property
    def controls(self) -> list[Record]:
        return [r for r in self.records if r.role is Role.CONTROL]

    @cached_property
    def compared(self) -> list[Record]:
        return [r for r in self.records if r.role is not Role.CONTROL]

    @property
    def ceilings(self) -> Ceilings:
        return Log([s for part in self.parts for s in part.log.sessions]).ceilings

    @cached_property
    def tolerances(self) -> dict[str, float]:
        return {p.id: p.case.tolerances.mae for p in self.plan.cases}

    @cached_property
    def environment(self) -> Environment | None:
        try:
            return Environment.read(self.folder.environment)
        except (OSError, ValueError):
            return None

    @cached_property
    def problems(self) -> list[MachineProblem]:
        if self.environment is None:
            return []
        problems = doctor.examine(self.environment, results=self.folder.path)
        # The disk may have changed since the run.
        return [problem for problem in problems if problem.code not in doctor.FOLDER_PROBLEMS]

    @cached_property
    def decisions(self) -> list[Decision]:
        return threshold.decide_run(self.records, self.plan)

    @cached_property
    def payments(self) -> list[BreakEven]:
        return break_even.decide(self.records)

    @cached_property
    def trust(self) -> str:
        if self.signer is not None:
            return f"To be signed with {_describe_key(self.signer.keyid, self.signer.ephemeral)}"
        if not os.path.lexists(self.folder.path / MANIFEST):
            return "Unsigned: nothing shows that it was not altered"
        report = verify(self.folder.path, tables=False)
        if report.broken or report.predicate is None:
            return f"Not to be trusted: {report.broken}"
        by = report.predicate.signer
        key = _describe_key(by.keyid, by.trust is Trust.EPHEMERAL)
        return f"Signed with {key}, and unaltered"

    @cached_property
    def shard_keys(self) -> dict[str, str]:
        """The keys that signed the shards of a merged run, by the shard's run id."""
        try:
            shards = brief_shards(self.folder.path, self.plan)
        except VerificationFailed:
            return {}
        return {s.run_id: _describe_key(s.keyid, s.trust is Trust.EPHEMERAL) for s in shards}

    @cached_property
    def title(self) -> str:
        names = list(dict.fromkeys(c.case.op for c in self.plan.cases))
        directions = list(dict.fromkeys(c.case.direction for c in self.plan.cases))
        subject = ", ".join(names) if len(names) <= MOST_OPS else f"{len(names)} ops"
        if directions != [Direction.FORWARD]:
            subject += f" {' and '.join(directions)}"
        gpu = next((r.gpu_name for r in self.records if r.gpu_name), "")
        return f"{subject} on {gpu or ('a CPU' if self.plan.device == 'cpu' else 'a GPU')}"

    @cached_property
    def machine(self) -> str:
        device = "CPU" if self.plan.device == "cpu" else "GPU"
        if not self.records:
            return device
        first = self.records[0]
        return " · ".join([first.gpu_name or device, *versions(first)])

    @cached_property
    def main_states(self) -> list[CaseState]:
        return [
            state
            for part in self.parts
            for state in states_of(part.plan, part.log, Purpose.MAIN).values()
        ]

    @cached_property
    def missing(self) -> int:
        return len(self.plan.by_id.keys() - {state.case_id for state in self.main_states})

    @cached_property
    def invalidating(self) -> list[Finding]:
        """Findings that invalidate the whole run, such as an uncaught control."""
        invalid = (f for f in self.results.findings if f.effect is Effect.INVALID)
        return [f for f in invalid if f.is_about_run and f.regime is None]

    @cached_property
    def undecided(self) -> list[Finding]:
        """Findings that invalidate some cases or one regime."""
        invalid = (f for f in self.results.findings if f.effect is Effect.INVALID)
        return [f for f in invalid if f.groups or (f.is_about_run and f.regime is not None)]

    def log(self, case_id: str, name: str, lines: int = 40) -> str:
        parts = []
        for purpose in Purpose:
            try:
                text = reading.tail(self.folder.printed(case_id, purpose), limits.PRINTED)
            except (OSError, reading.OutOfBounds):
                continue
            own = list(_filter_log(name, text))
            heading = [f"--- {purpose}"] if own and purpose is not Purpose.MAIN else []
            parts += [*heading, *own[-lines:]]
        return "\n".join(parts)


def _describe_key(keyid: str, ephemeral: bool) -> str:
    if ephemeral:
        return "a key made for this run only: nothing shows who made the run"
    return f"the key {keyid}"


def _filter_log(name: str, log: str) -> Iterator[str]:
    is_own = True
    for line in log.rstrip().splitlines():
        if line.startswith(HEAD):
            is_own = name in line.removeprefix(HEAD).split(", ")
        elif is_own:
            yield line


def surroundings(facts: Facts) -> dict[str, Any]:
    lines = machine(facts.environment)
    return {"machine": lines, "conditions": _list_conditions(facts), "commands": commands(facts)}


def machine(environment: Environment | None) -> list[tuple[str, str]]:
    if environment is None:
        return []
    return list(summarise(environment, [environment.gpu] if environment.gpu else []))


def _list_conditions(facts: Facts) -> list[tuple[str, str]]:
    seen = [c for state in facts.main_states for c in state.conditions.values()]
    clocks = [x for c in seen for x in (c.sm_clock_mhz_min, c.sm_clock_mhz_max) if x is not None]
    hottest = max((c.temperature_c_max for c in seen if c.temperature_c_max), default=None)
    power = max((c.power_w_max for c in seen if c.power_w_max), default=None)
    reasons = sorted({r for c in seen for r in c.clock_event_reasons})
    return [
        ("SM clock", f"{min(clocks)} to {max(clocks)} MHz" if clocks else "not readable"),
        ("hottest", f"{hottest} °C" if hottest else "not readable"),
        ("most power", f"{power:.0f} W" if power else "not readable"),
        ("clock events", ", ".join(reasons) or "none seen"),
    ]


def commands(facts: Facts) -> list[tuple[str, str]]:
    folder = shlex.quote(facts.folder.path.name or ".")
    environment = facts.environment
    lines = []
    if facts.plan.shards:
        lines.append(("the run, again", "nsabench merge SHARD… --out again"))
    elif environment is not None:
        lines.append(("the run, again", shlex.join(environment.run.command)))
    if environment is not None and environment.container.image_digest:
        lines.append(("the image", f"docker pull {environment.container.image_digest}"))
    return [
        *lines,
        ("its checks, again", f"nsabench audit {folder}"),
        ("this report, again", f"nsabench report {folder} --out again"),
        ("its signature", f"nsabench verify {folder}"),
    ]
