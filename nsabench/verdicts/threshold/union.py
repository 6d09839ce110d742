"""Decide several runs together: each candidate is one kernel, and checks see all their lengths.

A length series may be spread over several runs or matrices, so that none holds all of it.
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
    """Raise `UsageError` if a candidate is not the same code wherever it was tested."""
    seen: dict[tuple[str, str], Record] = {}
    for record in (t.record for evidence in given for t in evidence.tested if t.record.source):
        first = seen.setdefault((record.op, record.implementation), record)
        if _identify_code(first.source) != _identify_code(record.source):
            raise UsageError(
                f"{record.implementation} of {record.op} is not one kernel: it is of "
                f"{first.source} in run {first.run_id} and of {record.source} in run "
                f"{record.run_id}",
                "a threshold is of one kernel: give the runs of one source alone.",
            )


def taken_for_one(given: Iterable[Evidence]) -> dict[tuple[str, str], list[str]]:
    """Return caveats, by op and candidate: some runs or tables do not say what code was tested."""
    tested: dict[tuple[str, str], dict[str, Source]] = defaultdict(dict)
    for record in (t.record for evidence in given for t in evidence.tested):
        tested[record.op, record.implementation][record.run_id] = record.source
    caveats = {}
    for (op, name), sources in tested.items():
        unknown = sorted(run for run, source in sources.items() if not source)
        if unknown and len(sources) > 1:
            caveats[op, name] = [
                f"{name} is taken for one kernel in {' and '.join(sorted(sources))}: nothing says "
                f"what code was measured in {' and '.join(unknown)}"
            ]
    return caveats


def _identify_code(source: Source) -> str:
    return source.digest or source


def decide_together(given: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence of each run, with the findings that show only beside runs on the same
    versions and GPU."""
    return [
        _check_with(evidence, [other for other in given if other is not evidence])
        for evidence in given
    ]


def _check_with(own: Evidence, others: Sequence[Evidence]) -> Evidence:
    company = [
        # The first record of a length counts, so its own come first. Cases of two runs differ.
        replace(record, case_id=f"{record.case_id} of another run")
        for other in others
        if _are_comparable(own.records, other.records)
        for record in other.records
    ]
    if not company:
        return own
    # The data sheet applies to every host, and our timer flushes the L2.
    sheet = datasheet.find_unique(own.records[0].gpu_name)
    limits = replace(Limits.of_sheet(sheet), l2_bytes=0) if sheet else Limits()
    before = set(_run_checks(own.records, limits))
    by_case = {record.case_id: record for record in own.records}
    for finding in _run_checks([*own.records, *company], limits):
        if finding.case_id in by_case and finding not in before:
            own = _add_finding(own, finding, by_case[finding.case_id].op)
    return own


def _are_comparable(own: Sequence[Record], other: Sequence[Record]) -> bool:
    if not own or not other:
        return False
    machines = [(r.gpu_name, r.torch, r.triton, r.cuda) for r in (own[0], other[0])]
    codes = [
        {(r.op, r.implementation): _identify_code(r.source) for r in records}
        for records in (own, other)
    ]
    common = codes[0].keys() & codes[1].keys()
    return machines[0] == machines[1] and all(codes[0][key] == codes[1][key] for key in common)


def _run_checks(records: Sequence[Record], limits: Limits) -> list[Finding]:
    return [finding for check in ALONG_A_LENGTH for finding in check(records, limits)]


def _add_finding(evidence: Evidence, finding: Finding, op: str) -> Evidence:
    if finding.effect is not Effect.NOTE:
        return replace(evidence, tested=[_apply_finding(t, finding) for t in evidence.tested])
    notes = dict.fromkeys([*evidence.notes.get(op, ()), finding])
    return replace(evidence, notes={**evidence.notes, op: list(notes)})


def _apply_finding(tested: Tested, finding: Finding) -> Tested:
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
