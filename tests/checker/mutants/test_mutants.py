"""Every mutant is wrong and has its diagnosis, and what is right stays ok."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from nsabench.model.case import Case
from nsabench.model.record import Record
from nsabench.model.vocabulary import Direction, DType, Role, Runs, Status
from nsabench.ops._attention import VALUES
from tests.checker.mutants import ranges, rows, varlen
from tests.checker.mutants.judge import as_candidate, baselines, judge, shipped
from tests.checker.mutants.mutant import mutants, right_kernel

MUTANTS = {m.name: m for m in mutants()}
CASES = {m.case.id: m.case for m in MUTANTS.values()}
FAMILIES = (
    "selection_rows",
    "selection_varlen",
    "selection_ranges",
    "selection_blocks",
    "sliding_window",
    "compressed",
    "decode_step",
    "decode_selected",
    "decode_window",
    "decode_compressed",
    "decode_dense",
    "nsa_attention",
    "causal_attention",
)
FEWEST = 188
RIGHT = "right"
# Long enough for Triton's interpreter, one a family.
INTERPRETED = {rows.OP: rows.TAIL, varlen.OP: varlen.EMPTY, ranges.OP: ranges.MIXED}
shipped()  # imported while tests are collected, when conftest.py freezes what there is

_judged: dict[str, dict[str, Record]] = {}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def judged(case: Case) -> dict[str, Record]:
    """All mutants of a case together, with what they are made of and one honest baseline."""
    if case.id not in _judged:
        of_case = [m for m in MUTANTS.values() if m.case.id == case.id]
        items = [as_candidate(case.op, m.name, m.make()) for m in of_case]
        items.append(as_candidate(case.op, RIGHT, right_kernel(case)))
        _judged[case.id] = judge(case, [*items, baselines(case)[0]])
    return _judged[case.id]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_and_told_what_it_is(name: str) -> None:
    mutant = MUTANTS[name]
    record = judged(mutant.case)[name]
    assert record.status is Status.WRONG, mutant.bug
    assert record.reason
    assert record.observation is not None
    assert record.observation.diagnosis_id == mutant.diagnosis, record.diagnosis


def test_there_are_mutants_of_every_family_and_of_every_backward() -> None:
    assert len(MUTANTS) >= FEWEST
    assert len(MUTANTS) == len(mutants())
    assert {case.op for case in CASES.values()} == set(FAMILIES)
    backward = {c.op for c in CASES.values() if c.direction is Direction.BACKWARD}
    assert backward == {"selection_ranges", "selection_blocks", "sliding_window", "compressed"}


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: f"{case.op}-{case.id}")
def test_what_they_are_made_of_is_ok_and_so_is_the_baseline(case: Case) -> None:
    records = judged(case)
    assert records[RIGHT].status is Status.OK, records[RIGHT].reason
    baseline = records[baselines(case)[0].name]
    assert baseline.status is Status.OK, baseline.reason


# Each format in turn: all of them with all ops would take a minute.
FORMATS = itertools.cycle([DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])


@pytest.mark.parametrize(("op", "dtype"), [*zip(FAMILIES, FORMATS, strict=False)])
def test_the_honest_stay_ok_in_every_format(op: str, dtype: DType) -> None:
    """All that torch offers on a CPU, and our kernels where the interpreter is quick."""
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
        records = judge(case, [as_candidate(op, RIGHT, right_kernel(case)), *baselines(case)])
        for name, record in records.items():
            assert record.status in (Status.OK, Status.UNSUPPORTED), f"{name}: {record.reason}"
        assert records[RIGHT].status is Status.OK
        assert any(r.status is Status.OK for r in records.values() if r.role is Role.BASELINE)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("distribution", ["large_logits", "one_hot"])
def test_the_honest_stay_ok_on_scores_far_apart(distribution: str, dtype: DType) -> None:
    """As `selection_edge` has them."""
    case = rows.LARGE.model_copy(update={"dtype": dtype, "distribution": distribution})
    records = judge(case, [as_candidate(rows.OP, RIGHT, right_kernel(case)), *baselines(case)])
    for name, record in records.items():
        assert record.status in (Status.OK, Status.UNSUPPORTED), f"{name}: {record.reason}"
    assert records[RIGHT].status is Status.OK


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles, and interprets nothing")
@pytest.mark.parametrize(("op", "dtype"), [*zip(INTERPRETED, FORMATS, strict=False)])
def test_our_kernels_stay_ok_in_the_interpreter(op: str, dtype: DType) -> None:
    case = INTERPRETED[op].model_copy(update={"dtype": dtype})
    ours = [i for i in shipped() if i.op == op and Runs.INTERPRETER in i.devices]
    records = judge(case, [*ours, baselines(case)[0]])
    assert ours
    for item in ours:
        record = records[item.name]
        assert record.status is Status.OK, f"{item.name}: {record.reason} {record.diagnosis}"
