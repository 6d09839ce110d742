"""What follows from a shard, derived anew: rows, verdicts, and what a decision needs of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from nsabench.assessment import merged
from nsabench.assessment.failures import failures
from nsabench.assessment.parquet import of_bursts, of_samples
from nsabench.assessment.results import Results
from nsabench.assessment.tables import of_records
from nsabench.assessment.threshold import evidence
from nsabench.assessment.threshold.evidence import Evidence
from nsabench.fleet.shard import Shard
from nsabench.model.plan import MergedShard, Plan


@dataclass(frozen=True)
class Derived:
    """Of one shard. results: None where no page shows them, since they are large to hand from
    process to process; wall_s, measuring_s: of its passes, and of kernels and compilers in them."""

    results: Results | None
    records: pa.Table
    samples: pa.Table
    bursts: pa.Table
    failed: list[str]
    evidence: Evidence
    wall_s: float
    measuring_s: float


def derived(
    given: tuple[Shard, MergedShard, Plan, str], run_id: str, sizes: Iterable[str], shown: bool
) -> Derived:
    """given: a shard, as the merged run names it, its part of the plan, and why its host is not as
    the others, if it is not. run_id: of the merged run; sizes: all that its shapes have; shown:
    whether there is a page that shows its results."""
    shard, info, part, outlying = given
    contents = shard.contents()
    results = merged.of_shard(run_id, info, part, contents, outlying)
    return Derived(
        results=results if shown else None,
        records=of_records(results.records, sizes),
        samples=of_samples(run_id, results.samples),
        bursts=of_bursts(run_id, results.bursts),
        failed=failures(results),
        evidence=evidence.of_records(results.records, part).without_rows(),
        wall_s=sum(entry.wall_s for entry in contents.entries),
        measuring_s=contents.measuring_s,
    )
