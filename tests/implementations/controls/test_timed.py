"""Controls that are right, and are caught by what the checks see in their times."""

from dataclasses import replace

import pytest

from nsabench import ops
from nsabench.assessment.checks import Effect, Limits, Row, run_all
from nsabench.assessment.checks.controls import catch
from nsabench.assessment.statistics import quantile
from nsabench.execution.timing import ceilings
from nsabench.execution.timing.timer import CpuTimer
from nsabench.model.case import FixedCount, Timing
from nsabench.model.vocabulary import Catch, Status
from tests.checking import measured as measured_by_checker
from tests.true_caches import true_caches

HONEST = ("sdpa_heads_as_queries", "sdpa_gqa")
CHEATS = ("sleeping_wrapper", "patched_clocks", "relative_error")


@pytest.fixture(scope="module")
def rows(shipped, make_case):
    timing = Timing(warmup_s=0.005, stopping=FixedCount(kind="fixed_count", rounds=15))
    case = make_case(N=16, L=512, timing=timing)
    measured = measured_by_checker(
        case,
        [shipped[name] for name in (*HONEST, *CHEATS)],
        timer=CpuTimer(),
    )
    found = []
    for outcome in measured.outcomes:
        item = shipped[outcome.implementation]
        times = outcome.samples.time_ms
        found.append(
            Row(
                case_id=case.id,
                op=case.op,
                implementation=item.name,
                role=item.role,
                caught_by=item.caught_by,
                status=outcome.status,
                reason=outcome.reason,
                dtype=case.dtype,
                shape=case.shape,
                length=512,
                bytes_min=ops.work(case).bytes_min,
                flops=ops.work(case).flops,
                mae=outcome.mae,
                rel_l2=outcome.rel_l2,
                median_ms=quantile(times, 0.5) if times else None,
            )
        )
    return found


@pytest.fixture(scope="module")
def limits():
    with true_caches():
        return Limits.measured(ceilings.measure("cpu", CpuTimer()))


@pytest.mark.parametrize("name", CHEATS)
def test_it_passes_the_gate_and_its_check_catches_it(rows, limits, name):
    (row,) = [r for r in rows if r.implementation == name]
    assert row.status is Status.OK, row.reason
    assert catch(row, rows, run_all(rows, limits)) is Catch.CAUGHT


def test_the_run_is_valid_and_the_honest_are_not_accused(rows, limits):
    found = run_all(rows, limits)
    assert not [f for f in found if f.effect is Effect.INVALID]
    accused = [f for f in found if f.implementation in HONEST and f.effect is not Effect.NOTE]
    assert accused == []


def test_a_lie_that_works_would_be_seen(rows, limits):
    fooled = [
        replace(r, median_ms=1e-4) if r.implementation == "patched_clocks" else r for r in rows
    ]
    (finding,) = [f for f in run_all(fooled, Limits()) if f.effect is Effect.INVALID]
    assert finding.implementation == "patched_clocks"
