"""Runs that are decided together: of one kernel, and checked along a length as one run would be.

A length series may be spread over several runs, shards or matrices. Then none of them holds all of
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nsabench.checks import Effect, Finding, Limits, cliff, monotone, scaling
from nsabench.errors import UsageError
from nsabench.machine import datasheet
from nsabench.model.record import Record
from nsabench.model.source import Source
from nsabench.model.vocabulary import Verdict
from nsabench.verdicts.records import STATUS_OF
from nsabench.verdicts.series import Tested
from nsabench.verdicts.threshold.evidence import Evidence
from nsabench.verdicts.verdict import because

ALONG_A_LENGTH = (cliff.check, monotone.check, scaling.check)


def refuse_several_kernels(given: Iterable[Evidence]) -> None:
    """Raises `UsageError` when a candidate is not the same code wherever it was tested."""
    seen: dict[tuple[str, str], Record] = {}
    for record in (t.record for evidence in given for t in evidence.tested if t.record.source):
        first = seen.setdefault((record.op, record.implementation), record)
        if _code(first.source) != _code(record.source):
            raise UsageError(
                f"{record.implementation} of {record.op} is not one kernel: it is of "
                f"{first.source} in run {first.run_id} and of {record.source} in run "
                f"{record.run_id}",
                "a threshold is of one kernel: give the runs of one source alone.",
            )


def taken_for_one(given: Iterable[Evidence]) -> dict[tuple[str, str], list[str]]:
    """Say of candidates, by op and name, that not all runs or tables tell what code was tested."""
    tested: dict[tuple[str, str], dict[str, Source]] = defaultdict(dict)
    for record in (t.record for evidence in given for t in evidence.tested):
        tested[record.op, record.implementation][record.run_id] = record.source
    said = {}
    for (op, name), sources in tested.items():
        unsaid = sorted(run for run, source in sources.items() if not source)
        if unsaid and len(sources) > 1:
            said[op, name] = [
                f"{name} is taken for one kernel in {' and '.join(sorted(sources))}: nothing says "
                f"what code was measured in {' and '.join(unsaid)}"
            ]
    return said


def _code(source: Source) -> str:
    """Return what identifies the code; a file may have been renamed."""
    return source.digest or source


def decide_together(given: Sequence[Evidence]) -> list[Evidence]:
    """The evidence of each run, with what shows only beside the runs that agree with it."""
    return [
        _beside(evidence, [other for other in given if other is not evidence]) for evidence in given
    ]


def _beside(own: Evidence, others: Sequence[Evidence]) -> Evidence:
    company = [
        # Its own record of a length comes first in a series; cases of two runs are never one.
        replace(record, case_id=f"{record.case_id} of another run")
        for other in others
        if _agree(own.records, other.records)
        for record in other.records
    ]
    if not company:
        return own
    # By the data sheet, as for any host; our timer leaves nothing in L2.
    sheet = datasheet.find_unique(own.records[0].gpu_name)
    limits = replace(Limits.of_sheet(sheet), l2_bytes=0) if sheet else Limits()
    known = set(_find(own.records, limits))
    by_case = {record.case_id: record for record in own.records}
    for finding in _find([*own.records, *company], limits):
        if finding.case_id in by_case and finding not in known:
            own = _with(own, finding, by_case[finding.case_id].op)
    return own


def _agree(own: Sequence[Record], other: Sequence[Record]) -> bool:
    if not own or not other:
        return False
    machines = [(r.gpu_name, r.torch, r.triton, r.cuda) for r in (own[0], other[0])]
    code = {(r.op, r.implementation): _code(r.source) for r in own}
    same = all(code.get((r.op, r.implementation), c) == c for r in other for c in [_code(r.source)])
    return machines[0] == machines[1] and same


def _find(records: Sequence[Record], limits: Limits) -> list[Finding]:
    return [finding for check in ALONG_A_LENGTH for finding in check(records, limits)]


def _with(evidence: Evidence, finding: Finding, op: str) -> Evidence:
    """The evidence, now that this is known of one of its cases."""
    if finding.effect is not Effect.NOTE:
        return replace(evidence, tested=[_held_to(t, finding) for t in evidence.tested])
    notes = dict.fromkeys([*evidence.notes.get(op, ()), finding])
    return replace(evidence, notes={**evidence.notes, op: list(notes)})


def _held_to(tested: Tested, finding: Finding) -> Tested:
    judged = tested.comparison.verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME)
    if not judged or not finding.concerns(tested.record):
        return tested
    if finding.effect in STATUS_OF:
        status = STATUS_OF[finding.effect]
        return replace(
            tested,
            record=replace(tested.record, status=status, reason=finding.sentence),
            comparison=replace(tested.comparison, verdict=Verdict.INVALID, lo=None),
        )
    comparison = because(tested.comparison, finding.sentence)
    return replace(tested, comparison=replace(comparison, verdict=Verdict.INCONCLUSIVE))
