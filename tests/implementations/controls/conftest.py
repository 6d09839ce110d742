"""The shipped implementations, and a case to try one on, on the CPU."""

from collections.abc import Callable
from random import Random

import pytest

from nsabench import registry
from nsabench.model.case import Case
from nsabench.registry import Implementation
from nsabench.worker.arm import CaseArm
from tests.checking import a_case, arm_of, sets_of

MakeCase = Callable[..., Case]


@pytest.fixture(scope="session")
def shipped() -> dict[str, Implementation]:
    return {i.name: i for i in registry.load() if i.op == "selection_rows"}


@pytest.fixture(scope="session")
def make_case() -> MakeCase:
    def make(
        N: int = 8, H: int = 4, D: int = 64, L: int = 256, *, dtype: str = "float16", **fields
    ) -> Case:
        shape = {"N": N, "H": H, "D": D, "Dv": fields.pop("Dv", D), "L": L}
        return a_case("selection_rows", shape, dtype=dtype, seed=20260101, **fields)

    return make


@pytest.fixture(scope="session")
def make_arm(shipped) -> Callable[..., CaseArm]:
    def make(name: str, case: Case, seed: int = 0) -> CaseArm:
        return arm_of(shipped[name], case, sets_of(case), Random(seed))

    return make
