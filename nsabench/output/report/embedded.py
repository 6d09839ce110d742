"""The data a report carries for its charts and tables: compact, compressed, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nsabench.assessment import labels
from nsabench.assessment.caution import beside
from nsabench.assessment.checks.limits import Limits, least
from nsabench.assessment.checks.row import Row
from nsabench.assessment.tables import RECORDS
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Status
from nsabench.output.report import html
from nsabench.output.report.facts import Facts

TEXTS = (
    "case_id",
    "op",
    "implementation",
    "role",
    "dtype",
    "direction",
    "distribution",
    "mode",
    "status",
    "verdict",
    "queue_verdict",
    "reason",
    "diagnosis",
    "notes",
    "best_baseline",
    "caught",
    "caution",
    "queue_caution",
    "queue_best_baseline",
    "package",
    "package_version",
    "licence",
)
NUMBERS = (
    "length",
    "streams",
    "median_ms",
    "queued_ms",
    "queued_p20_ms",
    "queued_p80_ms",
    "host_us",
    "host_p20_us",
    "host_p80_us",
    "launches",
    "p20_ms",
    "p80_ms",
    "n_samples",
    "speedup",
    "speedup_lo",
    "speedup_hi",
    "queue_speedup",
    "queue_speedup_lo",
    "queue_speedup_hi",
    "roofline_fraction",
    "mae",
    "max_abs_err",
    "rel_l2",
    "worst_row",
    "flops",
    "bytes_min",
    "compile_s",
    "peak_mem_bytes",
    "session",
)
# Quantiles of the samples that are kept a record, by how many records have samples.
FINE, COARSE = 40, 12
MANY = 5000
GRAIN = 1e-4


def data(facts: Facts) -> dict[str, Any]:
    """What the scripts of report.html unpack."""
    return of_records(
        facts.records,
        facts.ceilings,
        margin=facts.plan.margin,
        tolerances=facts.tolerances,
        samples=_samples(facts),
    )


def of_records(
    of: Sequence[Record],
    ceilings: Ceilings,
    *,
    margin: float,
    tolerances: Mapping[str, float],
    samples: Sequence[list[int] | None],
) -> dict[str, Any]:
    """The same of records alone. tolerances: MAE by case, where they are known; samples: quantiles
    as `_samples` has them, one a record."""
    limits = Limits.measured(ceilings)
    constant = labels.constant(of)
    ops = {r.op for r in of}
    records = [
        {
            **record.row(),
            "caution": beside(record, record.regime),
            "queue_caution": beside(record, Regime.QUEUE),
            "label": labels.case(record),
            "short": _short(record, constant, several=len(ops) > 1),
            "shape": labels.shape(record),
            "floor_ms": _floor_ms(record, limits),
            "tolerance": tolerances.get(record.case_id),
        }
        for record in of
    ]
    return {
        **html.rows(
            records, ["label", "short", "shape", *TEXTS], [*NUMBERS, "floor_ms", "tolerance"]
        ),
        "samples": list(samples),
        "grain": GRAIN,
        "columns": {c.name: {"unit": c.unit, "meaning": c.meaning} for c in RECORDS},
        "ceilings": ceilings.model_dump(mode="json"),
        "margin": margin,
        "axes": {op: labels.axis(op) for op in ops},
        "usual": {op: labels.usual_distribution(op) for op in ops},
    }


def _short(record: Record, constant: Mapping[str, list[str]], *, several: bool) -> str:
    """What tells the case from others of this page."""
    own = [word for word in labels.words(record) if word not in constant[record.op]]
    return " ".join([record.op, *own] if several else own)


def _samples(facts: Facts) -> list[list[int] | None]:
    """Evenly spaced quantiles of each record's samples, in steps of `GRAIN` away from its median,
    or null where it has none. Runs are alike in these steps, and pack well."""
    timed = sum(r.status is Status.OK for r in facts.records)
    count = FINE if timed <= MANY else COARSE
    return [_quantiles(facts, record, count) for record in facts.records]


def _quantiles(facts: Facts, record: Record, count: int) -> list[int] | None:
    _, samples = facts.results.samples[record.key]
    if record.median_ms is None:
        return None
    quantiles = np.quantile(samples.time_ms, np.linspace(0, 1, count + 1))
    steps: list[int] = np.rint((quantiles / record.median_ms - 1) / GRAIN).astype(int).tolist()
    return steps


def _floor_ms(record: Record, limits: Limits) -> float | None:
    """The least time that the compulsory work of the case takes at the ceilings of this run."""
    bound = least(
        Row(
            case_id=record.case_id,
            op=record.op,
            implementation=record.implementation,
            role=record.role,
            status=record.status,
            dtype=record.dtype,
            shape={},
            length=record.length,
            bytes_min=record.bytes_min,
            flops=record.flops,
        ),
        limits,
    )
    return bound.ms if bound else None
