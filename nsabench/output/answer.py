"""The answer of a run in sentences, which the terminal, the page and Markdown share."""

from collections import Counter
from collections.abc import Iterator, Sequence

from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Pays, Role, Status, Verdict
from nsabench.output import grouped
from nsabench.output.document import FAILED, Sentence
from nsabench.output.standing import Standing, is_of_the_user, name_untried, standings
from nsabench.verdicts.break_even import REGIME_NAMES, BreakEven
from nsabench.verdicts.results import Results
from nsabench.verdicts.threshold import Decision


def split_candidates(
    plan: Plan, records: Sequence[Record]
) -> tuple[list[Standing], list[Standing]]:
    """Return the user's candidates and the others. Without any of the user, all are the first."""
    everything = standings(records)
    own = [s for s in everything if is_of_the_user(plan, s.records[0])] or everything
    return own, [s for s in everything if s not in own]


def describe_outcome(plan: Plan, results: Results, took: str = "") -> Sentence:
    """Return whether the run is complete, and how many kernels failed. took: ` in 12.3 s`."""
    missed = {r.implementation for r in results.records if r.caught is Catch.MISSED}
    if missed:
        count = "a control was" if len(missed) == 1 else f"{len(missed)} controls were"
        return Sentence(f"invalid{took}: {count} not caught", FAILED)
    untried = name_untried(plan, results.records)
    if untried and not results.failures:
        return Sentence(f"complete{took}, but no candidate was tried: {untried}", "bold yellow")
    failed = {
        (r.op, r.implementation): _name_failure(r)
        for r in results.records
        if r.role is not Role.CONTROL and r.status not in BENIGN
    }
    counts = Counter(failed.values())
    texts = [f"{n} {what.replace(' ', 's ', 1) if n > 1 else what}" for what, n in counts.items()]
    if not texts and results.failures:
        return Sentence(f"invalid{took}: {results.failures[0]}", FAILED)
    return Sentence(", ".join([f"complete{took}", *texts]), FAILED if texts else "bold green")


def _name_failure(record: Record) -> str:
    noun = "kernel" if record.role is Role.CANDIDATE else str(record.role)
    return f"{noun} {'wrong' if record.status is Status.WRONG else 'failed'}"


def list_findings(standing: Standing, decisions: Sequence[Decision]) -> list[str]:
    """Return in words whether a candidate is right, its ratios, and from which length to use it."""
    if all(r.median_ms is None for r in standing.right):  # the parts say why no length follows
        decisions = []
    own = [d for d in decisions if (d.op, d.candidate) == (standing.op, standing.implementation)]
    parts = [standing.correctness, *standing.speed]
    for (sentence, why), alike in grouped(own, lambda d: (d.sentence, _explain(d))).items():
        regimes = ", ".join(dict.fromkeys(d.regime for d in alike))
        parts.append(f"{sentence} ({regimes}{f'; {why}' if why else ''})")
    return parts


def _explain(decision: Decision) -> str:
    by, reasons = decision.decided_by, decision.reasons
    if by is None or decision.weakest or reasons[1:]:  # more than the case that fails
        return reasons[0] if reasons else ""
    found = by.comparison.verdict if by.record.status is Status.OK else by.record.status
    if found is by.comparison.verdict and by.lo is None:
        return by.why or "not timed"
    surely = f"not surely {decision.margin:g}x as fast" if found is Verdict.FASTER else found
    return f"{surely} at {decision.axis}={by.length}"


def describe_shipped(shipped: Sequence[Standing]) -> str:
    failed = [s.implementation for s in shipped if s.right != s.ran]
    but = f", not {', '.join(failed)}" if failed else ""
    return f"shipped candidates: {len(shipped) - len(failed)} of {len(shipped)} are right{but}"


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
