"""report.html: the page of one run, section by section.

A section has a template of its name in `templates`, which sees the facts and its own context `s`.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsabench import checks, labels
from nsabench.checks import Effect
from nsabench.checks.controls import CHECK
from nsabench.checks.limits import Limits, least
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Column, Comparison, Record, columns
from nsabench.model.vocabulary import BENIGN, Catch, Regime, Status
from nsabench.output import grouped
from nsabench.output.document import Name, Table, Tag, number
from nsabench.output.report import html
from nsabench.output.report.facts import Facts, surroundings
from nsabench.output.report.payment_chart import charts
from nsabench.output.report.tables import by_length, shards
from nsabench.output.standing import tally_of_controls
from nsabench.verdicts import threshold
from nsabench.verdicts.break_even import CALLED
from nsabench.verdicts.caution import beside
from nsabench.verdicts.failures import found_while_measuring, unproven
from nsabench.verdicts.tables import COMPARISONS, RECORDS

SCRIPTS = ("series.js", "charts.js", "main.js")
MOST_LOGS = 30  # excerpts; the run's folder has the whole logs

COLUMNS = tuple(column.name for column in columns(Record))
# What the scripts call the fields of a comparison, by regime: the own one, and the queue.
COMPARED = {
    "verdict": "verdict",
    "best_baseline": "against",
    "speedup": "ratio",
    "speedup_lo": "lo",
    "speedup_hi": "hi",
    **{name: name for name in ("median_ms", "net_ms", "p20_ms", "p80_ms", "n_samples")},
}
# Quantiles of the samples that are kept for each record, by how many records have samples.
FINE, COARSE = 40, 12
MANY = 5000
GRAIN = 1e-4


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    question: str
    context: Callable[[Facts], Any] = lambda facts: None
    applies: Callable[[Facts], bool] = lambda facts: True


def render(facts: Facts) -> str:
    """Return the page. Raises `EnvironmentRefused` if the extra `report` is not installed."""
    sections = [section for section in SECTIONS if section.applies(facts)]
    data = data_of(facts.records, facts.ceilings, facts.plan.margin, facts.tolerances)
    data["samples"] = _samples(facts)
    return html.render("page.html.j2", SCRIPTS, data, facts=facts, sections=sections)


def data_of(
    records: Sequence[Record],
    ceilings: Ceilings,
    margin: float,
    tolerances: Mapping[str, float],
) -> dict[str, Any]:
    """Return what the scripts of a page unpack. tolerances: MAE by case, where they are known."""
    limits = Limits.measured(ceilings)
    constant = labels.constant(records)
    ops = {r.op for r in records}
    rows = []
    for record in records:
        bound = least(record, limits)
        own = [word for word in labels.words(record) if word not in constant[record.op]]
        rows.append(
            {
                **{name: getattr(record, name) for name in COLUMNS},
                **_compared(record.compared(record.regime), ""),
                **_compared(record.compared(Regime.QUEUE), "queue_"),
                "reason": record.why,
                "caution": beside(record, record.regime),
                "queue_caution": beside(record, Regime.QUEUE),
                "label": labels.case(record),
                # What tells the case from others of this page.
                "short": " ".join([record.op, *own] if len(ops) > 1 else own),
                "shape": labels.shape(record),
                # The least time that the compulsory work takes at the ceilings of this run.
                "floor_ms": bound.ms if bound else None,
                "tolerance": tolerances.get(record.case_id),
            }
        )
    return {
        **html.rows(rows),
        "samples": [None] * len(rows),
        "grain": GRAIN,
        "columns": {name: {"unit": c.unit, "meaning": c.meaning} for name, c in _described()},
        "ceilings": ceilings.model_dump(mode="json"),
        "margin": margin,
        "axes": {op: labels.axis(op) for op in ops},
        "usual": {op: labels.usual_distribution(op) for op in ops},
    }


def _described() -> Iterator[tuple[str, Column]]:
    """The columns of a row by the names that the scripts know."""
    yield from ((column.name, column) for column in RECORDS)
    fields = {column.name: column for column in COMPARISONS}
    for prefix in ("", "queue_"):
        yield from ((prefix + name, fields[field]) for name, field in COMPARED.items())


def _compared(found: Comparison | None, prefix: str) -> dict[str, Any]:
    return {prefix + name: getattr(found, field, None) for name, field in COMPARED.items()}


def _samples(facts: Facts) -> list[list[int] | None]:
    """Return quantiles of each record's samples, or None if it has none. They are in steps of
    `GRAIN` away from the median: in these runs are alike, and pack well."""
    timed = sum(r.status is Status.OK for r in facts.records)
    shares = np.linspace(0, 1, (FINE if timed <= MANY else COARSE) + 1)
    found: list[list[int] | None] = []
    for record in facts.records:
        if record.median_ms is None or record.observation is None:
            found.append(None)
            continue
        samples = record.observation.samples
        steps = (np.quantile(samples.time_ms, shares) / record.median_ms - 1) / GRAIN
        found.append(np.rint(steps).astype(int).tolist())
    return found


def _decision(facts: Facts) -> dict[str, Any]:
    regimes = [r for r in CALLED if any(p.regime is r for p in facts.payments)]
    rows = grouped(facts.payments, lambda p: (p.op, p.heads, p.direction))
    return {
        # A line for each op, head layout and direction, a column for each regime.
        "regimes": [f"{CALLED[regime]} ({regime})" for regime in regimes],
        "pays": [
            (what, [next((p for p in row if p.regime is r), None) for r in regimes])
            for what, row in rows.items()
        ],
        "controls": tally_of_controls(facts.records),
        "unproven": unproven(facts.results),
        "thresholds": threshold.as_yaml(facts.decisions, facts.payments),
    }


def _faster(facts: Facts) -> dict[str, Any]:
    several = len({r.op for r in facts.candidates}) > 1
    return {
        "any": any(r.speedup is not None for r in facts.candidates),
        "lengths": by_length(facts, ops=several),
        "cautions": sorted({said for r in facts.candidates if (said := beside(r, r.regime))}),
        # Labels of cases leave out the words that all cases of an op share.
        "constant": {op: words for op, words in labels.constant(facts.records).items() if words},
        "several": several,
        "why_not": sorted({r.why for r in facts.candidates if r.speedup is None}),
    }


def _correct(facts: Facts) -> dict[str, Any]:
    rows = [
        (
            labels.case(r),
            Name(r.implementation),
            r.role,
            number(r.mae, ".1e"),
            r.diagnosis or "no hypothesis was tried",
            r.reason,
        )
        for r in facts.compared
        if r.status is Status.WRONG
    ]
    columns = ("case", "implementation", "role", "MAE", "diagnosis", "reason")
    return {
        "compared": sum(r.mae is not None for r in facts.compared),
        "wrong": Table("Wrong outputs", columns, rows, ("MAE",), is_long=True),
        "tolerances": sorted(set(facts.tolerances.values())),
    }


def _failed(facts: Facts) -> dict[str, Any]:
    statuses = [s for s in Status if any(r.status is s for r in facts.compared)]
    rows = []
    for (name, role), own in grouped(facts.compared, lambda r: (r.implementation, r.role)).items():
        counts = Counter(r.status for r in own)
        rows.append((Name(name), role, *(number(counts[s] or None, "d") for s in statuses)))
    failed = (r for r in facts.compared if r.status is not Status.OK)
    reasons = Counter((r.status, r.reason) for r in failed).most_common()
    grave = [r for r in facts.compared if r.status not in BENIGN]
    return {
        "statuses": Table("Statuses", ("implementation", "role", *statuses), rows, statuses),
        "reasons": Table(
            "Reasons",
            ("status", "records", "reason"),
            [(Tag(status), str(n), reason) for (status, reason), n in reasons],
            ("records",),
            is_long=True,
        ),
        "logs": [
            (labels.case(r), r, facts.log(r.case_id, r.implementation)) for r in grave[:MOST_LOGS]
        ],
        "more": max(len(grave) - MOST_LOGS, 0),
    }


def _trust(facts: Facts) -> list[dict[str, Any]]:
    """Return what each check asks and found. Findings in controls are expected."""
    controls = {r.key for r in facts.controls}
    findings = [*facts.results.findings, *found_while_measuring(facts.results)]
    lines = []
    for name in [*checks.all_checks(), CHECK]:
        own = [f for f in findings if f.check == name]
        others = [f for f in own if (f.case_id, f.implementation) not in controls]
        counts = Counter(f.effect for f in others)
        module = importlib.import_module(f"nsabench.checks.{name}")
        first_line = " ".join((inspect.getdoc(module) or "").partition("\n\n")[0].split())
        lines.append(
            {
                "name": name,
                # "Roofline: no time below ..." repeats the name.
                "asks": first_line.partition(": ")[2],
                "counts": [(effect, counts[effect]) for effect in Effect if counts[effect]],
                "in_controls": len(own) - len(others),
                "examples": others[:3],
            }
        )
    return lines


def _controls(facts: Facts) -> dict[str, Any]:
    rows = []
    for (_, name), own in grouped(facts.controls, lambda r: (r.op, r.implementation)).items():
        became = ", ".join(
            f"{n} {word}" for word, n in sorted(Counter(r.caught for r in own).items())
        )
        evidence = next((r.diagnosis or r.reason for r in own if r.reason), "–")
        rows.append((Name(name), own[0].caught_by, became, evidence))
    columns = ("control", "to be caught by", "became", "evidence")
    return {
        "controls": Table("Each control", columns, rows),
        "missed": sum(r.caught is Catch.MISSED for r in facts.controls),
        "tally": tally_of_controls(facts.records),
    }


SECTIONS = (
    Section("decision", "Decision", "Is it right, is it faster, and from where on?", _decision),
    Section(
        "pays",
        "Pays",
        "From which length on is it faster than what a model could run instead?",
        lambda facts: {
            "payments": facts.payments,
            "charts": charts(facts.payments, facts.records),
        },
        lambda facts: bool(facts.payments),
    ),
    Section(
        "faster",
        "Speed-up",
        "Where is the candidate faster than the best valid baseline?",
        _faster,
    ),
    Section("why", "Time", "Why: how far is each implementation from what the device can do?"),
    Section("correct", "Parity", "Is the output right?", _correct),
    Section("failed", "Failures", "What failed, and how?", _failed),
    Section("trust", "Trust", "Can it be trusted?", _trust),
    Section(
        "shards",
        "Shards",
        "Which shard measured what, and did their devices agree?",
        lambda facts: list(shards(facts)),
        lambda facts: bool(facts.plan.shards),
    ),
    Section("where", "Environment", "Where did it run, and how is it repeated?", surroundings),
    Section("records", "Records", "Everything that was measured"),
    Section("controls", "Controls", "What was wrong on purpose, and was it caught?", _controls),
)
