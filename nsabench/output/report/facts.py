"""Everything a report tells, gathered once from a run; the sections only choose and phrase."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from nsabench import limits, reading
from nsabench.assessment import pays, threshold
from nsabench.assessment.caution import speedups
from nsabench.assessment.checks import Effect, Finding
from nsabench.assessment.failures import failures, unproven
from nsabench.assessment.pays import Payment
from nsabench.assessment.results import Results, assemble
from nsabench.assessment.statistics import geometric_mean
from nsabench.assessment.threshold import Decision
from nsabench.errors import UsageError
from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.execution import journal
from nsabench.execution.folder import HEAD, RunFolder
from nsabench.machine import doctor
from nsabench.machine.doctor import Problem
from nsabench.machine.environment.model import Environment
from nsabench.model.journal import Contents
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import (
    BENIGN,
    MARGIN,
    Direction,
    PassName,
    Regime,
    Role,
    Status,
    Verdict,
)
from nsabench.planning.narrow import Narrowed
from nsabench.signing import Signer

__all__ = ["Facts", "Standing", "quoted", "standings"]


MOST_OPS = 3  # that a title names


@dataclass(frozen=True)
class Facts:
    """A run as a reader sees it."""

    folder: RunFolder
    plan: Plan
    contents: Contents
    results: Results
    # Who is about to sign the run that this is written into; None: nobody is.
    signer: Signer | None = None
    # The conditions that the cases were chosen by for this report.
    where: tuple[str, ...] = ()

    def narrowed(self, narrowed: Narrowed) -> Facts:
        """The same of the cases that it wants. Raises `UsageError` where there is none."""
        if not narrowed.where:
            return self
        plan = narrowed.plan(self.plan)
        results = replace(
            self.results,
            records=[r for r in self.records if r.case_id in plan.by_id],
            findings=[f for f in self.results.findings if not f.case_id or f.case_id in plan.by_id],
        )
        return replace(self, plan=plan, results=results, where=narrowed.where)

    @classmethod
    def read(
        cls, path: Path, results: Results | None = None, signer: Signer | None = None
    ) -> Facts:
        """A run from its folder; derived anew from its journal unless the results are given.

        Raises `UsageError` when nothing was measured.
        """
        folder = RunFolder.existing(path)
        plan = Plan.read(folder.plan)
        if not folder.journal.is_file():
            raise UsageError(f"{path} holds no journal", "give the folder that nsabench made.")
        contents = journal.read(folder.journal)
        if not contents.headers:
            raise UsageError(
                f"{path} holds no measurement yet", f"go on with `nsabench all --resume {path}`."
            )
        return cls(folder, plan, contents, results or assemble(plan, contents), signer)

    @property
    def records(self) -> list[Record]:
        return self.results.records

    @property
    def ceilings(self) -> Ceilings:
        return self.contents.ceilings

    @cached_property
    def environment(self) -> Environment | None:
        """What `environment.json` says; None where it is missing or not readable."""
        try:
            return Environment.read(self.folder.environment)
        except (OSError, ValueError):
            return None

    @cached_property
    def problems(self) -> list[Problem]:
        """What the doctor says of the machine as it was before the first case."""
        if self.environment is None:
            return []
        problems = doctor.examine(self.environment, results=self.folder.path)
        # The disk is as it is now, not as it was during the run.
        return [problem for problem in problems if problem.code not in doctor.OF_THE_FOLDER]

    @cached_property
    def decisions(self) -> list[Decision]:
        """What this version of nsabench decides of the run."""
        return threshold.decide_run(self.records, self.plan)

    @cached_property
    def said_otherwise(self) -> str:
        """What the run's `thresholds.yaml` says that is not so decided here, if it does."""
        if self.where:
            return ""  # it speaks of all cases
        return threshold.said_otherwise(self.folder.path, self.plan, self.decisions)

    @cached_property
    def thresholds_text(self) -> str:
        """The decisions as `thresholds.yaml` holds them."""
        return threshold.as_yaml(self.decisions, self.payments)

    @cached_property
    def payments(self) -> list[Payment]:
        """From which lengths on the ops of the run pay."""
        return pays.decide(self.records)

    @cached_property
    def trust(self) -> str:
        """A sentence: who vouches for the run, as far as can be told from its folder."""
        if self.signer is not None:
            return f"Made to be signed with {_key(self.signer.keyid, self.signer.ephemeral)}"
        if not os.path.lexists(self.folder.path / MANIFEST):
            return "Unsigned: nothing shows that it was not altered"
        report = verify(self.folder.path)
        if report.broken:
            return f"Not to be trusted: {report.broken}"
        return f"Signed with {_key(report.keyid, report.trust is Trust.EPHEMERAL)}, and unaltered"

    @cached_property
    def what(self) -> str:
        """What was measured, in a few words: the ops, and the directions if not forward alone."""
        names = list(dict.fromkeys(c.case.op for c in self.plan.cases))
        directions = list(dict.fromkeys(c.case.direction for c in self.plan.cases))
        said = ", ".join(names) if len(names) <= MOST_OPS else f"{len(names)} ops"
        return said if directions == [Direction.FORWARD] else f"{said} {' and '.join(directions)}"

    @cached_property
    def device(self) -> str:
        """The name of the GPU, or that it was none."""
        gpu = next((r.gpu_name for r in self.records if r.gpu_name), "")
        return gpu or ("a CPU" if self.plan.device == "cpu" else "a GPU")

    @cached_property
    def missing(self) -> int:
        """Planned cases without a journal entry: more than 0 in a run that was interrupted."""
        return len(self.plan.cases) - self.measured_cases

    @cached_property
    def measured_cases(self) -> int:
        """Planned cases with an entry in the journal."""
        return len(self.plan.by_id.keys() & self.contents.by_case(PassName.FIRST_LOOK).keys())

    @cached_property
    def invalidating(self) -> list[Finding]:
        """Findings that take all worth from the run: an uncaught control, say."""
        invalid = [f for f in self.results.findings if f.effect is Effect.INVALID]
        return [f for f in invalid if f.of_run and f.regime is None]

    @cached_property
    def undecided(self) -> list[Finding]:
        """Findings that take all worth from the cases of an op in a direction and mode, or from a
        regime."""
        invalid = [f for f in self.results.findings if f.effect is Effect.INVALID]
        return [f for f in invalid if f.groups or (f.of_run and f.regime is not None)]

    @cached_property
    def unproven(self) -> list[str]:
        """Which checks stand behind verdicts and were not shown to work there."""
        return unproven(self.results)

    @property
    def valid(self) -> bool:
        return not self.invalidating

    @cached_property
    def failures(self) -> list[str]:
        return failures(self.results)

    @cached_property
    def candidates(self) -> list[Record]:
        return [r for r in self.records if r.role is Role.CANDIDATE]

    @cached_property
    def controls(self) -> list[Record]:
        return [r for r in self.records if r.role is Role.CONTROL]

    @cached_property
    def failed(self) -> list[Record]:
        """Records that are not ok and not a control doing its work."""
        return [r for r in self.records if r.status is not Status.OK and r.role is not Role.CONTROL]

    @cached_property
    def grave(self) -> list[Record]:
        return [r for r in self.failed if r.status not in BENIGN]

    @cached_property
    def machine(self) -> str:
        """One line: the device and the versions that decide a number."""
        device = "CPU" if self.plan.device == "cpu" else "GPU"
        if not self.records:
            return device
        first = self.records[0]
        versions = {"torch": first.torch, "triton": first.triton, "CUDA": first.cuda}
        parts = [f"{name} {version}" for name, version in versions.items() if version]
        return " · ".join([first.gpu_name or device, *parts])

    @cached_property
    def tolerances(self) -> dict[str, float]:
        """MAE tolerance of each case."""
        return {p.id: p.case.tolerances.mae for p in self.plan.cases}

    @property
    def command(self) -> str:
        """How the run was, or would be, started."""
        if self.environment is not None and self.environment.run.command:
            return " ".join(quoted(word) for word in self.environment.run.command)
        words = ["nsabench", "all", *dict.fromkeys(m.name for m in self.plan.matrices)]
        words += ["--device", self.plan.device]
        if self.plan.kernels:
            words += ["--kernels", self.plan.kernels]
        if self.plan.ops:
            words += ["--ops", self.plan.ops]
        if self.plan.shard != "1/1":
            words += ["--shard", self.plan.shard]
        if self.plan.margin != MARGIN:
            words += ["--margin", f"{self.plan.margin:g}"]
        return " ".join(quoted(word) for word in words)

    def log(self, case_id: str, name: str, lines: int = 40) -> str:
        """The last lines of what an implementation printed and raised on a case, alone or with
        others, pass by pass; empty when there were none."""
        parts = []
        for look in PassName:
            try:
                text = reading.tail(self.folder.log(case_id, look), limits.LOG)
            except (OSError, reading.OutOfBounds):
                continue
            own = _of_one(text, name)
            heading = [f"--- {look}"] if own and look is not PassName.FIRST_LOOK else []
            parts += [*heading, *own[-lines:]]
        return "\n".join(parts)


@dataclass(frozen=True)
class Standing:
    """One candidate of one op in a sentence, and how its cases came out."""

    op: str
    implementation: str
    by_regime: dict[Regime, Counter[str]]
    cases: int
    unjudged: Counter[str]  # statuses of the cases without a verdict, and what was not timed
    unproven: int = 0  # verdicts behind which a check stands that was not shown to work
    # By regime, without those that a caution stands beside.
    speedups: Mapping[Regime, Sequence[float]] = field(default_factory=dict)
    ran: int = 0  # cases that it neither declined nor was left out of
    right: int = 0  # of these, cases with a right output that no check objects to
    decisions: tuple[Decision, ...] = ()  # one a regime
    cautions: Counter[str] = field(default_factory=Counter)  # what to bear in mind, and how often

    @property
    def averages(self) -> dict[Regime, float]:
        """Geometric means, which treat 2x and 0.5x alike; of one regime each, since a call that is
        faster on the device may be slower from Python."""
        means = {regime: geometric_mean(ratios) for regime, ratios in self.speedups.items()}
        return {regime: mean for regime, mean in means.items() if mean is not None}

    @property
    def sentence(self) -> str:
        counts = [
            f"{regime}: {', '.join(f'{of[v]} {v}' for v in Verdict if of[v])}"
            for regime, of in self.by_regime.items()
        ]
        unjudged = [f"{n} {status}" for status, n in sorted(self.unjudged.items())]
        counts += [", ".join(unjudged)] if unjudged else []
        return f"{'; '.join(counts)} of {self.cases} cases{self.proviso}"

    @property
    def proviso(self) -> str:
        """How many of these verdicts rest on a check that was not shown to work, and what else is
        to be borne in mind beside how many."""
        said = f"; {self.unproven} rest on an unproven check" if self.unproven else ""
        return said + "".join(f"; {text} in {n}" for text, n in self.cautions.items())


def standings(facts: Facts) -> list[Standing]:
    """How each candidate stands, in the order of the plan."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in facts.candidates:
        groups.setdefault((record.op, record.implementation), []).append(record)
    return [
        Standing(
            op,
            name,
            _by_regime([r for r in rows if not _only_checked(r)]),
            len(rows),
            Counter(
                "not timed" if _only_checked(r) else str(r.status)
                for r in rows
                if not r.verdict or _only_checked(r)
            ),
            sum(r.unproven_verdict for r in rows if not _only_checked(r)),
            {regime: speedups(rows, regime) for regime in Regime},
            sum(r.status not in (Status.UNSUPPORTED, Status.SKIPPED) for r in rows),
            sum(r.status is Status.OK for r in rows),
            tuple(d for d in facts.decisions if (d.op, d.candidate) == (op, name)),
            Counter(r.caution for r in rows if r.caution),
        )
        for (op, name), rows in groups.items()
    ]


def _key(keyid: str, ephemeral: bool) -> str:
    if ephemeral:
        return "a key made for this run alone: nothing shows who made it"
    return f"the key {keyid}"


def _only_checked(record: Record) -> bool:
    """Whether it is right and has no time, as of a Triton kernel on a CPU: that it is called
    inconclusive says nothing of it."""
    return record.status is Status.OK and record.median_ms is None


def _by_regime(rows: Sequence[Record]) -> dict[Regime, Counter[str]]:
    """How often there was which verdict, in each regime that there were some in."""
    counts: dict[Regime, Counter[str]] = {
        regime: Counter(judged[0] for r in rows if (judged := r.judged_in(regime)))
        for regime in Regime
    }
    return {regime: of for regime, of in counts.items() if of}


def _of_one(log: str, name: str) -> list[str]:
    """The lines of the parts of a log that are of `name`; what stands before any is of all."""
    lines, its_own = [], True
    for line in log.rstrip().splitlines():
        if line.startswith(HEAD):
            its_own = name in line.removeprefix(HEAD).split(", ")
        elif its_own:
            lines.append(line)
    return lines


def quoted(word: str) -> str:
    """A word as a shell takes it."""
    plain = word and all(c.isalnum() or c in "-_./=,:@%+[]" for c in word)
    return word if plain else json.dumps(word)
