"""Plans for the tests of the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nsabench.model.plan import Plan, PlannedCase
from tests.checking import a_case, plan_of, rounds

HOSTILE = Path(__file__).parent / "hostile.py"

MakePlan = Callable[..., Plan]


@pytest.fixture
def make_plan() -> MakePlan:
    def make(
        names: Sequence[str],
        *,
        lengths: Sequence[int] = (16,),
        timeout_s: float = 3.0,
        kernels: Path = HOSTILE,
    ) -> Plan:
        cases = [
            a_case(
                "selection_rows",
                {"N": 4, "H": 2, "D": 32, "Dv": 32, "L": length},
                timeout_s=timeout_s,
                timing=rounds(12),  # a count and no time: the machine may be busy
            )
            for length in lengths
        ]
        return plan_of(
            kernels,
            [PlannedCase(id=c.id, case=c, implementations=tuple(names)) for c in cases],
        )

    return make
