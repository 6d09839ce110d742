"""The shipped implementations of selection_rows, a case of it, and an arm on the CPU."""

from random import Random

import pytest

from nsabench import registry
from tests.checking import a_case, arm_of, sets_of


@pytest.fixture(scope="session")
def shipped():
    return {i.name: i for i in registry.load() if i.op == "selection_rows"}


@pytest.fixture(scope="session")
def make_case():
    def make(N=8, H=4, D=64, L=256, *, dtype="float16", **fields):
        shape = {"N": N, "H": H, "D": D, "Dv": fields.pop("Dv", D), "L": L}
        return a_case("selection_rows", shape, dtype=dtype, seed=20260101, **fields)

    return make


@pytest.fixture(scope="session")
def make_arm(shipped):
    def make(name, case, seed=0):
        return arm_of(shipped[name], case, sets_of(case), Random(seed))

    return make
