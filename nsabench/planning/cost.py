"""What a case costs to measure, in seconds, by its work.

The estimate is there to be in proportion, and the same on every host, so it knows no device. A case
takes a part that each has (warm-up and parity of each implementation, sampling until its budget is
spent) and a part that grows with its work (inputs, the oracle in float64, and every call).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nsabench import ops
from nsabench.model.case import Case, FixedCount
from nsabench.model.plan import PlannedCase
from nsabench.model.vocabulary import Direction

SET_UP_S = 0.05  # of an implementation: parity, and what comes before its samples
# What a GPU of today does of an op, not the most that it could.
FLOP_S, BYTE_S = 1e14, 1e12
# Of a case beside its samples: inputs, the oracle in float64, and baselines that move far more than
# they must. An H200 took 4 to 20 s a GB for blocks of up to 65536 tokens, the whole of up to 131072
# and its decode step. Cases of other ops that are as large were not timed.
BESIDE_FLOP_S, BESIDE_BYTE_S = 1e13, 1.5e8

OpDirection = tuple[str, Direction]


@dataclass(frozen=True)
class Costs:
    """seconds: of each case, by its id. beginnings: what every shard takes besides that measures
    cases of an op and direction: controls, and what is imported and traced for the first of them.
    """

    seconds: Mapping[str, float]
    beginnings: Mapping[OpDirection, float] = field(default_factory=dict)


def op_direction(case: Case) -> OpDirection:
    return case.op, case.direction


def by_work(cases: Sequence[PlannedCase]) -> Costs:
    """What cases cost by their work; what it takes to begin is not known. Raises `UsageError` as
    `ops.work`."""
    ops.count(planned.case for planned in cases)
    return Costs({planned.id: _of(planned.case, len(planned.implementations)) for planned in cases})


def _of(case: Case, implementations: int) -> float:
    work = ops.work(case)
    call_s = max(work.flops / FLOP_S, work.bytes_min / BYTE_S)
    timing = case.timing
    if isinstance(timing.stopping, FixedCount):
        sampling_s = timing.stopping.rounds * implementations * call_s
    else:
        sampling_s = timing.stopping.budget_s
    each_s = SET_UP_S + timing.warmup_s + timing.rotate * call_s
    beside_s = work.flops / BESIDE_FLOP_S + work.bytes_min / BESIDE_BYTE_S
    return implementations * each_s + sampling_s + beside_s
