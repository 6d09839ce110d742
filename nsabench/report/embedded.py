"""The data a report carries for its charts and tables: compact, compressed, and nothing else."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from nsabench import labels
from nsabench.checks.limits import Limits, least
from nsabench.checks.row import Row
from nsabench.report.facts import MARGIN, Facts, Record
from nsabench.results.columns import RECORDS
from nsabench.timing.statistics import quantile
from nsabench.words import DType, Role, Status

TEXTS = (
    "case_id",
    "op",
    "implementation",
    "role",
    "dtype",
    "direction",
    "distribution",
    "status",
    "verdict",
    "reason",
    "diagnosis",
    "notes",
    "best_baseline",
    "caught",
)
NUMBERS = (
    "length",
    "streams",
    "median_ms",
    "p20_ms",
    "p80_ms",
    "n_samples",
    "speedup",
    "speedup_lo",
    "speedup_hi",
    "roofline_fraction",
    "mae",
    "max_abs_err",
    "rel_l2",
    "flops",
    "bytes_min",
    "compile_s",
    "peak_mem_bytes",
    "session",
)
# Quantiles of the samples that are kept a record, by how many records have samples.
FINE, COARSE = 40, 12
MANY = 2500


def pack(facts: Facts) -> str:
    """Base64 of gzipped JSON. The same run gives the same text."""
    text = json.dumps(_data(facts), separators=(",", ":"), sort_keys=True, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _data(facts: Facts) -> dict[str, Any]:
    limits = Limits.measured(facts.ceilings)
    strings: dict[str, int] = {}

    def text(value: str | None) -> int | None:
        return None if value is None else strings.setdefault(value, len(strings))

    rows = []
    for record in facts.records:
        rows.append(
            [
                text(labels.case(record)),
                text(labels.shape(record)),
                *(text(record[key]) for key in TEXTS),
                *(_short(record[key]) for key in NUMBERS),
                _short(_floor_ms(record, limits)),
                _short(facts.tolerances[record["case_id"]]),
            ]
        )
    return {
        "texts": ["label", "shape", *TEXTS],
        "numbers": [*NUMBERS, "floor_ms", "tolerance"],
        "rows": rows,
        "samples": _samples(facts),
        "strings": list(strings),
        "columns": {c.name: {"unit": c.unit, "meaning": c.meaning} for c in RECORDS},
        "ceilings": facts.ceilings.model_dump(mode="json"),
        "margin": MARGIN,
        "defaults": {op: labels.usual_distribution(op) for op in {r["op"] for r in facts.records}},
    }


def _samples(facts: Facts) -> list[list[float | None] | None]:
    """Evenly spaced quantiles of each record's samples, or null where it has none."""
    timed = sum(r["status"] == Status.OK for r in facts.records)
    count = FINE if timed <= MANY else COARSE
    return [_quantiles(facts, record, count) for record in facts.records]


def _quantiles(facts: Facts, record: Record, count: int) -> list[float | None] | None:
    _, samples = facts.results.samples[record["case_id"], record["implementation"]]
    if record["status"] != Status.OK or not samples.time_ms:
        return None
    return [_short(quantile(samples.time_ms, i / count)) for i in range(count + 1)]


def _floor_ms(record: Record, limits: Limits) -> float | None:
    """The least time that the compulsory work of the case takes at the ceilings of this run."""
    bound = least(
        Row(
            case_id=record["case_id"],
            op=record["op"],
            implementation=record["implementation"],
            role=Role(record["role"]),
            status=Status(record["status"]),
            dtype=DType(record["dtype"]),
            shape={},
            length=record["length"],
            bytes_min=record["bytes_min"],
            flops=record["flops"],
        ),
        limits,
    )
    return bound.ms if bound else None


def _short(value: float | None) -> float | None:
    """Five digits, which is more than a timing has."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.5g}")
