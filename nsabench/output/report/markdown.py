"""selection_report.md: the same facts as plain text that two runs can be compared by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nsabench.assessment import labels, pays
from nsabench.assessment.caution import beside
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Role, Status
from nsabench.output.report.facts import Facts, standings
from nsabench.output.report.sections import shards
from nsabench.output.report.sections.where import commands, machine
from nsabench.output.report.statistics import Group, by_distribution, by_length
from nsabench.text import code, markdown

MOST = 40  # lines of a list of problems; records.parquet holds all


def render(facts: Facts) -> str:
    """The report. The same run gives the same text."""
    parts = (
        _summary,
        _environment,
        _shards,
        _method,
        _parity,
        _results,
        _statistics,
        _problems,
        _decision,
        _commands,
    )
    blocks = [f"# Selection report: {markdown(facts.machine)}"]
    blocks += [text for part in parts if (text := "\n".join(part(facts)))]
    return "\n\n".join(blocks) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _summary(facts: Facts) -> Iterator[str]:
    yield "## Summary\n"
    if facts.where:
        yield f"**Only the cases for which** {code(' and '.join(facts.where))}.\n"
    for finding in facts.invalidating:
        who = f"{code(finding.implementation)}: " if finding.implementation else ""
        yield f"**This run is invalid and decides nothing.** {who}{markdown(finding.sentence)}\n"
    for finding in facts.undecided:
        yield f"**Nothing is decided of a part of this run.** {markdown(finding.sentence)}\n"
    for sentence in facts.unproven:
        yield f"**Unproven:** {markdown(sentence)}.\n"
    if facts.missing:
        yield (
            f"**This run is incomplete:** {facts.missing} of {len(facts.plan.cases)} planned "
            f"cases were not measured.\n"
        )
    # In an invalid run each would say that once more.
    for payment in () if facts.invalidating else facts.payments:
        yield f"- {markdown(pays.said(payment))}"
    for standing in standings(facts):
        yield f"- {code(standing.implementation)} ({markdown(standing.op)}): {standing.sentence}"
    if not facts.candidates:
        yield "- No candidate took part."
    catches = Counter(r.caught for r in facts.controls if r.caught)
    words = ", ".join(f"{n} {word}" for word, n in sorted(catches.items())) or "none took part"
    yield f"- controls: {words}"
    yield f"- failures: {len(facts.failures) or 'none'}"


def _environment(facts: Facts) -> Iterator[str]:
    yield "## Environment\n"
    if facts.environment is None:
        yield "There is no readable `environment.json`: what machine this was is not known."
        return
    yield from table(
        ("what", "value"),
        ((name, markdown(line) or "not readable") for name, line in machine(facts.environment)),
    )
    for problem in facts.problems:
        yield f"\n**{problem.severity}** {markdown(problem.what)} {markdown(problem.remedy)}"


def _shards(facts: Facts) -> Iterator[str]:
    if not shards.applies(facts):
        return
    told = shards.context(facts)
    yield "## Shards\n"
    if not told["canary"]:
        yield "The plan has no case that all shards measure.\n"
    elif not told["implementation"]:
        yield (
            "No shard timed the case that all are held to each other by, "
            f"{markdown(told['canary'])}.\n"
        )
    else:
        yield (
            f"Times of {code(told['implementation'])} on {markdown(told['canary'])}, in ms, of "
            f"{told['timed']} of {told['shards']} shards.\n"
        )
    counts = ("cases", "seconds") if told["of_all"] else ()
    head = ("shard", "run", *counts, "canary (ms)", "over the median of all", "remark")
    yield from table(head, (_of_shard(row, bool(counts)) for row in told["rows"]))
    if told["more"]:
        yield f"\n{told['more']} more, which are nearer to the others, are not shown."


def _of_shard(row: shards.Row, counted: bool) -> list[str]:
    return [
        markdown(row.shard),
        code(row.run_id),
        *([str(row.cases), f"{row.wall_s:.0f}"] if counted else []),
        "–" if row.canary_ms is None else f"{row.canary_ms:.4g}",
        "–" if row.apart is None else f"{row.apart:.3f}",
        markdown(row.remark) or "–",
    ]


def _method(facts: Facts) -> Iterator[str]:
    ceilings = facts.ceilings
    yield "## Method\n"
    yield (
        "Every implementation of a case ran in one process, interleaved, on fresh inputs; "
        "compilation and warm-up are outside the samples. Outputs are compared with a float64 "
        "oracle on the same quantised inputs. A speed-up is the ratio of medians to the fastest "
        "valid baseline of the case, with its 95 % interval."
    )
    if facts.plan.device == "cpu":
        yield (
            "\nThis run was on a CPU: Triton kernels ran in its interpreter, for parity only, and "
            "have no time."
        )
    copy = f"{ceilings.copy_gb_s:.4g} GB/s" if ceilings.copy_gb_s else "not measured"
    rates = ", ".join(f"{k} {v:.3g} TFLOP/s" for k, v in sorted(ceilings.tflop_s.items()))
    yield f"\n- ceilings measured in this run: copy {copy}, {rates or 'no matmul rate'}"
    error = ceilings.known_duration_error
    accuracy = "not measured" if error is None else f"{error:+.2%} off"
    yield f"- the timer on a kernel of known duration: {accuracy}"
    # A file holds one for each of its documents.
    files = dict.fromkeys(f"{code(m.name)} ({m.sha256[:12]})" for m in facts.plan.matrices)
    yield f"- matrices: {', '.join(files)}"
    yield f"- {facts.measured_cases} cases, {len(facts.records)} records"


def _parity(facts: Facts) -> Iterator[str]:
    yield "## Parity\n"
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for r in facts.records:
        if r.role is not Role.CONTROL:
            groups.setdefault((r.implementation, r.role, r.dtype), []).append(r)
    yield from table(
        (
            "implementation",
            "role",
            "dtype",
            "compared",
            "wrong",
            "worst MAE",
            "worst relative L2",
            "of one row",
        ),
        (
            (
                code(name),
                markdown(role),
                markdown(dtype),
                str(sum(r.mae is not None for r in rows)),
                str(sum(r.status is Status.WRONG for r in rows)),
                _worst(r.mae for r in rows),
                _worst(r.rel_l2 for r in rows),
                _worst(r.worst_row for r in rows),
            )
            for (name, role, dtype), rows in groups.items()
        ),
    )


def _worst(errors: Iterable[float | None]) -> str:
    return _number(max((error for error in errors if error is not None), default=None), ".2e")


def _results(facts: Facts) -> Iterator[str]:
    yield "## Results by distribution\n"
    yield from _groups(by_distribution(facts), "distribution", facts.plan.margin)
    yield "\n### Cases\n"
    times = {r.key: r.median_ms for r in facts.records}
    queued = {r.key: r.queued_ms for r in facts.records}
    yield from table(
        (
            *("case", "candidate", "ms", "queued", "host, µs"),
            *(
                "best baseline",
                "its ms",
                "its queued",
                "speed-up [95 %]",
                "verdict",
                "in the queue",
            ),
        ),
        (
            (
                markdown(labels.case(r)),
                code(r.implementation),
                _number(r.median_ms, ".4g"),
                _number(r.queued_ms, ".4g"),
                _number(r.host_us, ".0f"),
                code(r.best_baseline) if r.best_baseline else "–",
                _number(times.get((r.case_id, r.best_baseline)), ".4g"),
                _number(queued.get((r.case_id, r.best_baseline)), ".4g"),
                "–"
                if r.speedup is None
                else f"{r.speedup:.3f} [{r.speedup_lo:.3f}, {r.speedup_hi:.3f}]",
                # A dash alone would hide why: the reason stands where the verdict would.
                _verdict(r) or f"{r.status}: {markdown(r.reason)}",
                _in_queue(r),
            )
            for r in facts.candidates
        ),
    )


def _verdict(record: Record) -> str:
    lacking = f" (unproven: {markdown(record.unproven)})" if record.unproven_verdict else ""
    bear = _bear(record, record.regime)
    return f"{record.regime}: {record.verdict}{lacking}{bear}" if record.verdict else ""


def _bear(record: Record, regime: Regime) -> str:
    said = beside(record, regime)
    return f" ({said})" if said else ""


def _in_queue(record: Record) -> str:
    """Against its best baseline there, which may be another."""
    if record.queue_speedup is None:
        return f"queue: {record.queue_verdict}" if record.queue_verdict else "–"
    return (
        f"queue: {record.queue_verdict}, {record.queue_speedup:.3f} "
        f"[{record.queue_speedup_lo:.3f}, {record.queue_speedup_hi:.3f}] "
        f"to {code(record.queue_best_baseline)}{_bear(record, Regime.QUEUE)}"
    )


def _statistics(facts: Facts) -> Iterator[str]:
    yield "## Statistics by length\n"
    yield from _groups(by_length(facts), "L", facts.plan.margin)
    yield (
        f"\n≥ {facts.plan.margin:g}×: cases whose lower end of the 95 % interval is. Average: "
        f"geometric mean. Over tolerance: cases over the tolerance of the mean absolute error."
    )


def _groups(groups: Iterable[Group], name: str, margin: float) -> Iterator[str]:
    yield from table(
        (
            "candidate",
            name,
            "compared",
            f"≥ {margin:g}×",
            "average",
            "best",
            "worst",
            "over tolerance",
        ),
        (
            (
                code(g.implementation),
                markdown(g.name) + (f" ({g.caution})" if g.caution else ""),
                f"{g.compared} of {g.cases}",
                str(g.meeting),
                _number(g.average, ".2f"),
                _number(g.best, ".2f"),
                _number(g.worst, ".2f"),
                str(g.over_tolerance),
            )
            for g in groups
        ),
    )


def _problems(facts: Facts) -> Iterator[str]:
    yield "## Problems found\n"
    controls = {r.implementation for r in facts.controls}
    lines = [f"- {markdown(line)}" for line in facts.failures]
    lines += [
        f"- {markdown(f.check)} ({f.effect}) "
        f"{code(' '.join(x for x in (f.case_id, f.implementation) if x))}:"
        f" {markdown(f.sentence)}"
        for f in facts.results.findings
        if f.implementation not in controls or not f.case_id
    ]
    yield from lines[:MOST] or ["None."]
    if len(lines) > MOST:
        yield f"- and {len(lines) - MOST} more: `nsabench audit RUN` prints them all"


def _decision(facts: Facts) -> Iterator[str]:
    yield "## Decision\n"
    if facts.invalidating:
        yield "None: the run is invalid."
        return
    for d in facts.decisions:
        where = markdown(d.gpu) or "a CPU"
        yield f"- {code(d.candidate)} ({markdown(d.op)}) on {where}, **{d.said}**"
        yield from (f"  - {markdown(why)}" for why in [*d.reasons, *d.caveats, *d.notes])
    if not facts.decisions:
        yield (
            "None: a threshold switches a forward on, and these cases are backward."
            if facts.candidates
            else "There is no candidate to decide about."
        )
    if facts.said_otherwise:
        yield f"\n**Otherwise before:** {markdown(facts.said_otherwise)}."


def _commands(facts: Facts) -> Iterator[str]:
    yield "## Commands\n"
    for name, command in commands(facts):
        yield f"- {name}: {code(command)}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
