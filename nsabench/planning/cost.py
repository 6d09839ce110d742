"""How long a case takes to measure, estimated from its work.

The estimate is in proportion and the same on every host, so it knows no device. A case has a fixed
part: warm-up and parity of each implementation, and sampling until its budget is spent. The other
part grows with its work: inputs, the oracle in float64, and every call.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsabench import ops
from nsabench.model.case import Case, FixedCount
from nsabench.model.plan import PlannedCase

SET_UP_S = 0.05  # parity of an implementation and everything else before its samples
# What a current GPU reaches on an op, not its peak.
FLOP_S, BYTE_S = 1e14, 1e12
# Work of a case besides its samples: inputs, the oracle in float64, and baselines that move far
# more than they must. An H200 took 4 to 20 s for each GB of large cases.
REST_FLOP_S, REST_BYTE_S = 1e13, 1.5e8


def by_work(cases: Sequence[PlannedCase]) -> dict[str, int]:
    """Return microseconds by case id, whole so that the order of a sum does not change it.

    Raises `UsageError` as `ops.work` does.
    """
    ops.count(planned.case for planned in cases)
    return {p.id: round(1e6 * _seconds(p.case, len(p.implementations))) for p in cases}


def _seconds(case: Case, implementations: int) -> float:
    work = ops.work(case)
    call_s = max(work.flops / FLOP_S, work.bytes_min / BYTE_S)
    timing = case.timing
    if isinstance(timing.stopping, FixedCount):
        sampling_s = timing.stopping.rounds * implementations * call_s
    else:
        sampling_s = timing.stopping.budget_s
    each_s = SET_UP_S + timing.warmup_s + timing.rotate * call_s
    rest_s = work.flops / REST_FLOP_S + work.bytes_min / REST_BYTE_S
    return implementations * each_s + sampling_s + rest_s
