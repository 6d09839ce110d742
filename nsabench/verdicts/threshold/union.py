"""Runs that are read together: of one kernel, and held together to what looks along a length.

Where a ladder lies in several runs, be they shards or matrices of their own, none of them sees it
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nsabench.checks import Effect, Finding, Limits, cliff, monotone, scaling
from nsabench.errors import UsageError
from nsabench.machine import datasheet
from nsabench.model.record import Record
from nsabench.model.source import Source
from nsabench.model.vocabulary import Verdict
from nsabench.verdicts.records import STATUS_OF
from nsabench.verdicts.threshold.evidence import Evidence, Implementation, Note, Tested

ALONG_A_LENGTH = (cliff.check, monotone.check, scaling.check)


def refuse_several_kernels(given: Iterable[Evidence]) -> None:
    """Raises `UsageError` when a candidate is not the same code wherever it was tested."""
    seen: dict[tuple[str, str], Tested] = {}
    for tested in (t for evidence in given for t in evidence.tested if t.source):
        first = seen.setdefault((tested.op, tested.candidate), tested)
        if _digest(first.source) != _digest(tested.source):
            raise UsageError(
                f"{tested.candidate} of {tested.op} is not one kernel: it is of {first.source} in "
                f"run {first.run_id} and of {tested.source} in run {tested.run_id}",
                "a threshold is of one kernel: give the runs of one source alone.",
            )


def taken_for_one(given: Iterable[Evidence]) -> dict[Implementation, list[str]]:
    """What to say of candidates, by op and name, that were tested in several runs or tables of
    which not all say what code that was."""
    tested: dict[Implementation, dict[str, str]] = {}
    for one in (t for evidence in given for t in evidence.tested):
        tested.setdefault((one.op, one.candidate), {})[one.run_id] = one.source
    return {
        (op, name): [
            f"{name} is taken for one kernel in {' and '.join(sorted(sources))}: nothing says what "
            f"code was measured in {' and '.join(unsaid)}"
        ]
        for (op, name), sources in tested.items()
        if (unsaid := sorted(run for run, source in sources.items() if not source))
        and len(sources) > 1
    }


def _digest(source: str) -> str:
    """A file may have been given another name."""
    return Source(source).digest or source


def looked_at_together(given: Sequence[Evidence]) -> list[Evidence]:
    """The evidence of each run, with what shows only beside the runs that agree with it."""
    return [
        _beside(evidence, [other for other in given if other is not evidence]) for evidence in given
    ]


def _beside(own: Evidence, others: Sequence[Evidence]) -> Evidence:
    limits = _limits(own)
    company = [
        # A rung that it has itself comes first in its ladder; cases of two runs are never one.
        replace(row, case_id=f"{row.case_id} of another run")
        for other in others
        if _agree(own, other)
        for row in other.rows
    ]
    known = set(_find(own.rows, limits)) if company else set()
    cases = {row.case_id for row in own.rows}
    for finding in _find([*own.rows, *company], limits) if company else []:
        if finding.case_id in cases and finding not in known:
            own = _with(own, finding)
    return own


def _agree(one: Evidence, other: Evidence) -> bool:
    """Whether a ladder may lie in both: the same machine, and the same code under each name."""
    both = one.sources.keys() & other.sources.keys()
    same = all(_digest(one.sources[key]) == _digest(other.sources[key]) for key in both)
    return one.machine == other.machine and same


def _limits(evidence: Evidence) -> Limits:
    """By the data sheet, as for any host; our timer leaves nothing in L2."""
    sheet = datasheet.known(evidence.machine[0])
    return replace(Limits.of_sheet(sheet), l2_bytes=0) if sheet else Limits()


def _find(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    return [finding for check in ALONG_A_LENGTH for finding in check(rows, limits)]


def _with(evidence: Evidence, finding: Finding) -> Evidence:
    """The evidence, now that this is known of one of its cases."""
    if finding.effect is Effect.NOTE:
        row = next(row for row in evidence.rows if row.case_id == finding.case_id)
        note = Note(
            row.op,
            finding.implementation,
            f"{finding.implementation}: {finding.sentence}",
        )
        return replace(evidence, notes=list(dict.fromkeys([*evidence.notes, note])))
    return replace(evidence, tested=[_held_to(t, finding) for t in evidence.tested])


def _held_to(tested: Tested, finding: Finding) -> Tested:
    judged = tested.verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME)
    # What looks along a length names a case, and may speak of all that ran on it.
    of_it = finding.case_id == tested.case and finding.implementation in ("", tested.candidate)
    if not judged or not of_it:
        return tested
    if finding.effect in STATUS_OF:
        status = STATUS_OF[finding.effect]
        return replace(
            tested, status=status, verdict=Verdict.INVALID, speedup_lo=None, why=finding.sentence
        )
    return replace(tested, verdict=Verdict.INCONCLUSIVE, why=finding.sentence)
