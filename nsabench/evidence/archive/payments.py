"""The view `pays`: the break-even lengths of each run, decided anew from its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from nsabench import ops
from nsabench.evidence.archive.archive import ArchivedRun
from nsabench.verdicts import pays
from nsabench.verdicts.pays import Payment
from nsabench.verdicts.tables import records_in

SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("created", pa.timestamp("us", tz="UTC")),
        ("gpu", pa.string()),
        ("torch", pa.string()),
        ("triton", pa.string()),
        ("combo", pa.string()),
        ("kernels_commit", pa.string()),
        ("op", pa.string()),
        ("heads", pa.string()),
        ("direction", pa.string()),
        ("regime", pa.string()),
        ("axis", pa.string()),
        ("answer", pa.string()),
        ("pays_from", pa.int64()),  # null where it does not, or nothing is decided
        ("tested_to", pa.int64()),
        ("why", pa.string()),
        ("implementations", pa.string()),
        ("alternatives", pa.string()),
    ]
)


def table(runs: Iterable[tuple[ArchivedRun, Path, Path]]) -> pa.Table:
    """Return a row for each run, op, head layout, direction and regime.

    runs: each with the files of its records and comparisons. Ops that are not installed here are
    left out, because their lengths are not known. Raises `UsageError` if a file holds no records.
    """
    rows = [row for run, *paths in runs for row in _rows(run, *paths)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _rows(run: ArchivedRun, records: Path, comparisons: Path) -> Iterator[dict[str, Any]]:
    predicate = run.statement.predicate
    e = predicate.environment
    known = [r for r in records_in(records, comparisons) if ops.find(r.op) is not None]
    for payment in pays.decide(known):
        yield {
            "run_id": predicate.run_id,
            "created": predicate.plan.created,
            "gpu": e.gpu,
            "torch": e.torch,
            "triton": e.triton,
            "combo": e.combo,
            "kernels_commit": e.commits.get("kernels"),
            **_answer(payment),
        }


def _answer(p: Payment) -> dict[str, Any]:
    by, against = p.used
    return {
        "op": p.op,
        "heads": p.heads,
        "direction": p.direction.value,
        "regime": p.regime.value,
        "axis": p.axis,
        "answer": p.answer.value,
        "pays_from": p.length,
        "tested_to": p.greatest,
        "why": p.why,
        "implementations": ", ".join(by),
        "alternatives": ", ".join(against),
    }
