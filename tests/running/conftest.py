"""Plans for the tests of the supervisor."""

from pathlib import Path

import pytest

from nsabench.model.plan import PlannedCase
from tests.checking import a_case, plan_of, rounds

HOSTILE = Path(__file__).parent / "hostile.py"


def plan_of_cases(*implementations, lengths=(), timeout_s=3.0, kernels=HOSTILE):
    """Return a plan with a case for each tuple of implementations."""
    planned = []
    for number, names in enumerate(implementations):
        length = lengths[number] if lengths else 16 * (1 + number)
        case = a_case(
            "selection_rows",
            {"N": 4, "H": 2, "D": 32, "Dv": 32, "L": length},
            timeout_s=timeout_s,
            timing=rounds(12),  # a number of rounds, not a time: the machine may be busy
        )
        planned.append(PlannedCase(id=case.id, case=case, implementations=tuple(names)))
    return plan_of(kernels, planned)


@pytest.fixture
def make_plan():
    def make(names, *, lengths=(16,), **fields):
        return plan_of_cases(*[names] * len(lengths), lengths=lengths, **fields)

    return make
