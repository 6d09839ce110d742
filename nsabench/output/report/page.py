"""Write report.html, the page of one run.

Each section has a template of its name, which receives the facts and the section's context `s`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsabench import checks, labels
from nsabench.checks import Effect
from nsabench.checks.controls import CHECK
from nsabench.checks.roofline import DeviceLimits, least_time
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Column, Comparison, Record, columns
from nsabench.model.vocabulary import BENIGN, Catch, Regime, Role, Status
from nsabench.output import answer, grouped
from nsabench.output.document import Name, TableBlock, Tag, number
from nsabench.output.report import html, payment_chart, ratio_chart
from nsabench.output.report.facts import Facts, surroundings
from nsabench.output.report.tables import shards
from nsabench.output.standing import is_of_the_user, tally_of_controls
from nsabench.verdicts import thresholds_yaml
from nsabench.verdicts.break_even import BreakEven
from nsabench.verdicts.tables import COMPARISONS, RECORDS

SCRIPTS = ("series.js", "charts.js", "main.js")
MOST_LOGS = 30  # excerpts; the run's folder has the whole logs
MOST_SHOWN = 3  # candidates on the first screen: the user's, if there are any

COLUMNS = tuple(column.name for column in columns(Record))
# The fields of a comparison by their names in the scripts.
COMPARED = {
    "verdict": "verdict",
    "best_baseline": "against",
    "speedup": "ratio",
    "speedup_lo": "lo",
    "speedup_hi": "hi",
    **{name: name for name in ("median_ms", "net_ms", "p20_ms", "p80_ms", "n_samples")},
}
QUANTILES = 24  # quantiles of the samples of each record
GRAIN = 1e-4


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    question: str
    context: Callable[[Facts], Any] = lambda facts: None
    applies: Callable[[Facts], bool] = lambda facts: True
    is_folded: bool = True


def render(facts: Facts) -> str:
    data = data_of(facts.records, facts.ceilings, facts.plan.margin, facts.tolerances)
    data["samples"] = _list_quantiles(facts)
    contexts = {s.name: s.context(facts) for s in SECTIONS if s.applies(facts)}
    meta = [
        facts.machine,
        f"run {facts.plan.run_id}",
        f"{facts.plan.created:%Y-%m-%d %H:%M} UTC",
        f"{len(facts.plan.cases) - facts.missing} of {len(facts.plan.cases)} cases",
        f"{len(facts.records)} records",
        ", ".join(dict.fromkeys(matrix.name for matrix in facts.plan.matrices)),
    ]
    return render_sections(facts.title, meta, contexts, data, facts, bool(facts.invalidating))


def render_sections(
    title: str,
    meta: Sequence[str],
    contexts: Mapping[str, Any],
    data: Mapping[str, Any],
    facts: Facts | None = None,
    is_invalid: bool = False,
) -> str:
    """Return the page of a run: the sections that have a context. Archived runs have no facts."""
    return html.render(
        "page.html.j2",
        SCRIPTS,
        data,
        title=title,
        meta=meta,
        sections=[
            (section, contexts[section.name]) for section in SECTIONS if section.name in contexts
        ],
        facts=facts,
        is_invalid=is_invalid,
    )


def data_of(
    records: Sequence[Record], ceilings: Ceilings, margin: float, tolerances: Mapping[str, float]
) -> dict[str, Any]:
    """Return the data for the scripts of a page. `tolerances` has the allowed MAE of each case."""
    limits = DeviceLimits.from_run(ceilings)
    constant = labels.constant(records)
    ops = {r.op for r in records}
    rows = []
    for record in records:
        bound = least_time(record, limits)
        own = [word for word in labels.words(record) if word not in constant[record.op]]
        rows.append(
            {
                **{name: getattr(record, name) for name in COLUMNS},
                **_list_comparison(record.compared(record.regime), ""),
                **_list_comparison(record.compared(Regime.QUEUE), "queue_"),
                "reason": record.why,
                "caution": record.caution_in(record.regime),
                "queue_caution": record.caution_in(Regime.QUEUE),
                "label": labels.case(record),
                "short": " ".join([record.op, *own] if len(ops) > 1 else own),
                "shape": labels.shape(record),
                "floor_ms": bound.ms if bound else None,
                "tolerance": tolerances.get(record.case_id),
            }
        )
    return {
        **html.rows(rows),
        "samples": [None] * len(rows),
        "grain": GRAIN,
        "columns": {name: {"unit": c.unit, "meaning": c.meaning} for name, c in _list_columns()},
        "ceilings": ceilings.model_dump(mode="json"),
        "margin": margin,
        "axes": {op: labels.axis(op) for op in ops},
        "usual": {op: labels.usual_distribution(op) for op in ops},
    }


def _list_columns() -> Iterator[tuple[str, Column]]:
    yield from ((column.name, column) for column in RECORDS)
    fields = {column.name: column for column in COMPARISONS}
    for prefix in ("", "queue_"):
        yield from ((prefix + name, fields[field]) for name, field in COMPARED.items())


def _list_comparison(found: Comparison | None, prefix: str) -> dict[str, Any]:
    return {prefix + name: getattr(found, field, None) for name, field in COMPARED.items()}


def _list_quantiles(facts: Facts) -> list[list[int] | None]:
    """Return each record's quantiles: relative distances from its median, in units of `GRAIN`."""
    shares = np.linspace(0, 1, QUANTILES + 1)
    found: list[list[int] | None] = []
    for record in facts.records:
        if record.median_ms is None or record.observation is None:
            found.append(None)
            continue
        samples = record.observation.samples
        steps = (np.quantile(samples.time_ms, shares) / record.median_ms - 1) / GRAIN
        found.append(np.rint(steps).astype(int).tolist())
    return found


def pays(payments: Sequence[BreakEven], records: Sequence[Record]) -> dict[str, Any]:
    return {
        "charts": payment_chart.charts(payments, records),
        "tables": [_build_cases(payment) for payment in payments],
    }


def _build_cases(payment: BreakEven) -> TableBlock:
    rows = []
    for case in payment.tested:
        c = case.comparison
        ratio, lo, hi = (number(value, ".2f") for value in (c.ratio, c.lo, c.hi))
        ratio = "–" if c.ratio is None else f"{ratio}× [{lo}×, {hi}×]"
        rows.append((case.label, ratio, c.implementation or "–", c.against or c.reason))
    title = f"{payment.what} ({payment.regime}): {payment.sentence}"
    return TableBlock(title, ("case", "ratio [95 %]", "by", "against"), rows)


def _gather_decision(facts: Facts) -> dict[str, Any]:
    own, others = answer.split_candidates(facts.plan, facts.records)
    decisions = [] if facts.invalidating else facts.decisions
    payments = [] if facts.invalidating else facts.payments
    return {
        "outcome": answer.describe_outcome(facts.plan, facts.results),
        "candidates": [(s, answer.list_findings(s, decisions)) for s in [*own, *others]],
        "chart": None if facts.invalidating else ratio_chart.build(own),
        "most": min(len(own), MOST_SHOWN),
        "payments": list(answer.describe_payments(payments)),
        "controls": tally_of_controls(facts.records),
        "unproven": facts.results.unproven,
        "thresholds": thresholds_yaml.as_yaml(facts.decisions, facts.payments),
    }


def gather_speedups(records: Sequence[Record], margin: float) -> dict[str, Any]:
    candidates = [r for r in records if r.role is Role.CANDIDATE]
    several = len({r.op for r in candidates}) > 1
    return {
        "any": any(r.speedup is not None for r in candidates),
        "margin": margin,
        "cautions": sorted({caution for r in candidates if (caution := r.caution_in(r.regime))}),
        # The labels of cases omit these words.
        "constant": {op: words for op, words in labels.constant(records).items() if words},
        "several": several,
        "why_not": sorted({r.why for r in candidates if r.speedup is None}),
    }


def _gather_parity(facts: Facts) -> dict[str, Any]:
    return {
        "compared": sum(r.mae is not None for r in facts.compared),
        "wrong": sum(r.status is Status.WRONG for r in facts.compared),
        "tolerances": sorted(set(facts.tolerances.values())),
    }


def gather_failures(records: Sequence[Record], log: Callable[[str, str], str]) -> dict[str, Any]:
    compared = [r for r in records if r.role is not Role.CONTROL]
    statuses = [s for s in Status if any(r.status is s for r in compared)]
    rows = []
    for (name, role), own in grouped(compared, lambda r: (r.implementation, r.role)).items():
        counts = Counter(r.status for r in own)
        rows.append((Name(name), role, *(number(counts[s] or None, "d") for s in statuses)))
    failed = (r for r in compared if r.status is not Status.OK)
    reasons = Counter((r.status, r.reason) for r in failed).most_common()
    grave = [r for r in compared if r.status not in BENIGN]
    return {
        "statuses": TableBlock("Statuses", ("implementation", "role", *statuses), rows, statuses),
        "reasons": TableBlock(
            "Reasons",
            ("status", "records", "reason"),
            [(Tag(status), str(n), reason) for (status, reason), n in reasons],
            ("records",),
            is_long=True,
        ),
        "logs": [(labels.case(r), r, log(r.case_id, r.implementation)) for r in grave[:MOST_LOGS]],
        "more": max(len(grave) - MOST_LOGS, 0),
    }


def _build_checks(facts: Facts) -> TableBlock:
    controls = {r.key for r in facts.controls}
    findings = [*facts.results.findings, *facts.results.found_while_measuring]
    rows = []
    for name in [*checks.CHECKS, CHECK]:
        own = [f for f in findings if f.check == name]
        others = [f for f in own if (f.case_id, f.implementation) not in controls]
        counts = Counter(f.effect for f in others)
        found = ", ".join(f"{counts[effect]} {effect}" for effect in Effect if counts[effect])
        examples = "; ".join(
            " ".join(filter(None, (f.case_id, f.implementation, f.sentence))) for f in others[:3]
        )
        asks = " ".join(checks.describe_check(name).partition("\n\n")[0].split())
        in_controls = str(len(own) - len(others))
        rows.append((Name(name), asks, found or "✓ none", in_controls, examples or "–"))
    columns = ("check", "asks", "findings", "in controls (expected)", "examples")
    return TableBlock("Checks", columns, rows, ("in controls (expected)",))


def _gather_controls(facts: Facts) -> dict[str, Any]:
    rows = []
    for (_, name), own in grouped(facts.controls, lambda r: (r.op, r.implementation)).items():
        became = ", ".join(
            f"{n} {word}" for word, n in sorted(Counter(r.caught for r in own).items())
        )
        evidence = next((r.diagnosis or r.reason for r in own if r.reason), "–")
        rows.append((Name(name), own[0].caught_by, became, evidence))
    columns = ("control", "to be caught by", "became", "evidence")
    return {
        "controls": TableBlock("Each control", columns, rows),
        "missed": sum(r.caught is Catch.MISSED for r in facts.controls),
        "tally": tally_of_controls(facts.records),
    }


SECTIONS = (
    Section(
        "decision",
        "Decision",
        "Is it right, is it faster, and from which length?",
        _gather_decision,
        is_folded=False,
    ),
    Section(
        "failed",
        "Failures",
        "What failed, and how?",
        lambda facts: gather_failures(
            sorted(facts.records, key=lambda r: not is_of_the_user(facts.plan, r)), facts.log
        ),
        is_folded=False,
    ),
    Section(
        "pays",
        "Pays",
        "From which length is the op faster than what a model could run instead?",
        lambda facts: pays(facts.payments, facts.records),
        lambda facts: bool(facts.payments),
    ),
    Section(
        "faster",
        "Speed-up",
        "Where is the candidate faster than the best valid baseline?",
        lambda facts: gather_speedups(facts.records, facts.plan.margin),
    ),
    Section("why", "Time", "Why: how far is each implementation from what the device can do?"),
    Section("correct", "Parity", "Is the output right?", _gather_parity),
    Section("trust", "Trust", "Can it be trusted?", _build_checks),
    Section(
        "shards",
        "Shards",
        "Which shard measured what, and did their devices agree?",
        lambda facts: list(shards(facts)),
        lambda facts: bool(facts.plan.shards),
    ),
    Section("where", "Environment", "Where did it run, and how is it repeated?", surroundings),
    Section("records", "Records", "Everything that was measured", lambda facts: len(facts.records)),
    Section(
        "controls", "Controls", "What was wrong on purpose, and was it caught?", _gather_controls
    ),
)
