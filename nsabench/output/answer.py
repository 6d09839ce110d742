"""Put the answer of a run into sentences, for the terminal, report.html and Markdown."""

from collections import Counter
from collections.abc import Iterator, Sequence

from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Pays, Role, Status, ThresholdAnswer, Verdict
from nsabench.output import grouped
from nsabench.output.document import FAILED, Sentence
from nsabench.output.standing import Standing, is_of_the_user, name_untried, standings
from nsabench.verdicts.break_even import REGIME_NAMES, BreakEven
from nsabench.verdicts.results import Results
from nsabench.verdicts.threshold import Decision

YOURS, WRONG, FAILED_TO_RUN = "your kernel", "is wrong", "failed"


def split_candidates(
    plan: Plan, records: Sequence[Record]
) -> tuple[list[Standing], list[Standing]]:
    """Return the user's candidates (or, if there are none, all candidates), and all others."""
    everything = standings(records)
    own = [s for s in everything if is_of_the_user(plan, s.records[0])] or everything
    return own, [s for s in everything if s not in own]


def describe_outcome(plan: Plan, results: Results, took: str = "") -> Sentence:
    """Say whether the run is complete, and whose kernels failed. `took` may be ` in 12.3 s`."""
    missed = {r.implementation for r in results.records if r.caught is Catch.MISSED}
    if missed:
        count = "a control was" if len(missed) == 1 else f"{len(missed)} controls were"
        return Sentence(f"invalid{took}: {count} not caught", FAILED)
    untried = name_untried(plan, results.records)
    if untried and not results.failures:
        return Sentence(f"complete{took}, but no candidate was tried: {untried}", "bold yellow")
    compared = [r for r in results.records if r.role is not Role.CONTROL]
    has_failed = any(r.status not in BENIGN for r in compared)
    if not has_failed and results.failures:
        return Sentence(f"invalid{took}: {results.failures[0]}", FAILED)
    found = ", ".join(_count_outcomes(plan, compared))
    text = f"complete{took}: {found}" if found else f"complete{took}"
    return Sentence(text, FAILED if has_failed else "bold green")


def _count_outcomes(plan: Plan, records: Sequence[Record]) -> Iterator[str]:
    """Yield texts such as `1 of your 2 kernels is wrong`. Count other kernels only if they fail."""
    kernels = grouped(records, lambda r: (r.op, r.implementation)).values()
    counts = Counter((_name_owner(plan, own[0]), _name_outcome(own)) for own in kernels)
    yours = sum(n for (owner, _), n in counts.items() if owner == YOURS)
    for (owner, outcome), n in sorted(counts.items(), key=lambda item: item[0][0] != YOURS):
        subject = f"{n} {owner}{'s' if n > 1 else ''}"
        if owner == YOURS:
            subject = f"{n} of your {yours} kernels" if yours > 1 else YOURS
        elif outcome not in (WRONG, FAILED_TO_RUN):
            continue
        yield f"{subject} {outcome.replace('is ', 'are ') if n > 1 else outcome}"


def _name_owner(plan: Plan, record: Record) -> str:
    if record.role is not Role.CANDIDATE:
        return str(record.role)
    return YOURS if is_of_the_user(plan, record) else "shipped kernel"


def _name_outcome(records: Sequence[Record]) -> str:
    statuses = {r.status for r in records}
    if statuses <= BENIGN:
        return "is right" if Status.OK in statuses else "did not run"
    return WRONG if Status.WRONG in statuses else FAILED_TO_RUN


def list_findings(standing: Standing, decisions: Sequence[Decision]) -> list[str]:
    """Return in words whether a candidate is right, its ratios, and from which length to use it."""
    if all(r.median_ms is None for r in standing.right):  # without times, nothing is decided
        decisions = []
    own = [d for d in decisions if (d.op, d.candidate) == (standing.op, standing.implementation)]
    open_, decided = list[str](), list[str]()
    for (sentence, why), alike in grouped(own, lambda d: (d.sentence, _explain(d))).items():
        regimes = ", ".join(dict.fromkeys(d.regime for d in alike))
        parts = open_ if alike[0].answer is ThresholdAnswer.NOT_DECIDED else decided
        parts.append(f"{sentence} ({regimes}{f'; {why}' if why else ''})")
    # Undecided answers come before the ratios, which alone would look like a decision.
    return [standing.correctness, *open_, *standing.speed, *decided]


def _explain(decision: Decision) -> str:
    by, reasons = decision.decided_by, decision.reasons
    if by is None or decision.weakest or reasons[1:]:  # no single case is the reason
        return reasons[0] if reasons else ""
    found = by.comparison.verdict if by.record.status is Status.OK else by.record.status
    if found is by.comparison.verdict and by.lo is None:
        return by.why or "not timed"
    surely = f"not surely {decision.margin:g}x as fast" if found is Verdict.FASTER else found
    return f"{surely} at {decision.axis}={by.length}"


def describe_shipped(shipped: Sequence[Standing]) -> str:
    failed = [s.implementation for s in shipped if s.right != s.ran]
    ran = [s for s in shipped if s.ran]
    but = f"; not right: {', '.join(failed)}" if failed else ""
    rest = f"; {len(shipped) - len(ran)} did not run" if len(ran) < len(shipped) else ""
    return f"shipped candidates: {len(ran) - len(failed)} of {len(ran)} are right{but}{rest}"


def describe_payments(payments: Sequence[BreakEven]) -> Iterator[str]:
    """Yield lines such as `nsa_attention pays from Python (queue): 64/4 forward from T = 32768`."""
    for (op, regime), of_op in grouped(payments, lambda p: (p.op, p.regime)).items():
        parts = []
        for heads, own in grouped(of_op, lambda p: p.heads).items():
            lengths = ", ".join(f"{p.direction} {_describe_length(p)}" for p in own)
            parts.append(f"{heads} {lengths}".strip())
        yield f"{op} pays {REGIME_NAMES[regime]} ({regime}): {'; '.join(parts)}"


def _describe_length(p: BreakEven) -> str:
    if p.answer is Pays.FROM:
        return f"from {p.axis} = {p.length}"
    if p.answer is Pays.NO:
        return f"{p.answer} (up to {p.axis} = {p.greatest})"
    return str(p.answer)
