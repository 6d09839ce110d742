"""Every mutant is wrong and has its diagnosis, and right kernels stay ok."""

import itertools
import math
from functools import cache

import pytest
import torch

from nsabench import registry
from nsabench.model.description import Described
from nsabench.model.plan import PlannedCase
from nsabench.model.vocabulary import Direction, DType, Purpose, Role, Runs, Status
from nsabench.ops._attention import VALUES
from nsabench.verdicts.results import assess
from tests.checker.mutants import backward, bands, selections
from tests.checker.mutants.mutant import MUTANTS as LISTED
from tests.checker.mutants.mutant import right_kernel
from tests.checker.mutants.right import KERNELS
from tests.checking import measured, registered
from tests.runs import Made, add_attempt, log_of, make_plan

assert backward and bands  # importing them adds their mutants
MUTANTS = {m.name: m for m in LISTED}
CASES = {m.case.id: m.case for m in LISTED}
FEWEST = 188
RIGHT = "right"
# For Triton's interpreter: one case of each of three ops.
INTERPRETED = (selections.TAIL, selections.EMPTY, selections.MIXED)
SHIPPED = registry.load()  # loaded while tests are collected, so that conftest.py freezes it
FORMATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)

pytestmark = pytest.mark.usefixtures("one_thread")


def baselines(case):
    """Return the baselines that run on a CPU and compute the op's function in this case."""
    return [
        item
        for item in SHIPPED
        if item.op == case.op
        and item.role is Role.BASELINE
        and Runs.CPU in item.devices
        and item.concerns(case)
    ]


def judge(case, kernels, items):
    """Return the records of candidates and of other items, measured together.

    nsabench's own code makes them: a worker measures, and the checks decide.
    """
    candidates = [registered(case.op, name, kernel) for name, kernel in kernels.items()]
    items = [*candidates, *items]
    found = measured(case, items, probes=True)
    planned = PlannedCase(id=case.id, case=case, implementations=tuple(i.name for i in items))
    cpu = {"device": "cpu", "implementations": items, "cases": [planned]}
    plan = make_plan(Made()).model_copy(update=cpu)
    log = log_of(plan, described=Described(software={}, device={"type": "cpu"}))
    add_attempt(log, plan, Purpose.MAIN, case.id, found.observations)
    return {record.implementation: record for record in assess(plan, log).results().records}


@cache
def judged(case_id):
    """Return records of all mutants of a case, of their right kernel, and of a baseline."""
    case = CASES[case_id]
    kernels = {m.name: m.kernel for m in LISTED if m.case.id == case_id}
    return judge(case, {**kernels, RIGHT: right_kernel(case)}, baselines(case)[:1])


def assert_honest(records):
    for name, record in records.items():
        assert record.status in (Status.OK, Status.UNSUPPORTED), f"{name}: {record.reason}"
    assert records[RIGHT].status is Status.OK


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_and_told_what_it_is(name):
    mutant = MUTANTS[name]
    record = judged(mutant.case.id)[name]
    assert record.status is Status.WRONG, mutant.bug
    assert record.reason
    assert record.observation.diagnosis_id == mutant.diagnosis, record.diagnosis


def test_there_are_mutants_of_every_op_and_of_every_backward():
    assert len(MUTANTS) == len(LISTED) >= FEWEST
    assert {case.op for case in CASES.values()} == set(KERNELS)
    of_backward = {c.op for c in CASES.values() if c.direction is Direction.BACKWARD}
    assert of_backward == {"selection_ranges", "selection_blocks", "sliding_window", "compressed"}


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: f"{case.op}-{case.id}")
def test_what_they_are_made_of_is_ok_and_so_is_the_baseline(case):
    records = judged(case.id)
    for name in (RIGHT, baselines(case)[0].name):
        assert records[name].status is Status.OK, records[name].reason


# Each op has one format: all formats with all ops would take too long.
@pytest.mark.parametrize(("op", "dtype"), zip(KERNELS, itertools.cycle(FORMATS), strict=False))
def test_the_honest_stay_ok_in_every_format(op, dtype):
    """The right kernel and all baselines run on the smallest case of each direction."""
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        some = [
            c
            for c in CASES.values()
            if c.op == op and c.direction is direction and c.distribution not in VALUES
        ]
        if not some:
            continue
        smallest = min(some, key=lambda case: math.prod(case.shape.values()))
        case = smallest.model_copy(update={"dtype": dtype})
        records = judge(case, {RIGHT: right_kernel(case)}, baselines(case))
        assert_honest(records)
        assert any(r.status is Status.OK for r in records.values() if r.role is Role.BASELINE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles, and interprets nothing")
@pytest.mark.parametrize(("case", "dtype"), zip(INTERPRETED, FORMATS, strict=True))
def test_our_kernels_stay_ok_in_the_interpreter(case, dtype):
    case = case.model_copy(update={"dtype": dtype})
    ours = [i for i in SHIPPED if i.op == case.op and Runs.INTERPRETER in i.devices]
    records = judge(case, {}, [*ours, *baselines(case)[:1]])
    assert ours
    for item in ours:
        record = records[item.name]
        assert record.status is Status.OK, f"{item.name}: {record.reason} {record.diagnosis}"
