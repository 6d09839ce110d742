"""What `nsa_attention` ships with: each mistake of the op is planned where it is one."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from nsabench import ops, registry
from nsabench.failure import Failure
from nsabench.implementations.baselines.nsa_attention import MOST_GATHERED, MOST_KEPT
from nsabench.implementations.controls import roofline
from nsabench.model.plan import ImplementationInfo, PlannedCase
from nsabench.model.vocabulary import L2, Direction, DType, Mode, Role, Status
from nsabench.planning import matrix, resolve
from nsabench.registry import Implementation
from tests.checking import arm_of, sets_of

REQUIRED = (
    "branch_left_out",
    "gates_all_one",
    "scores_of_another_group",
    "window_one_short",
    "compression_of_the_future",
    "rows_left_out_made_up",
)

WITHOUT_WINDOW = tuple(name for name in REQUIRED if name != "window_one_short")


@cache
def items() -> dict[tuple[str, str], Implementation]:
    return {(i.op, i.name): i for i in registry.load()}


@cache
def planned(name: str) -> tuple[PlannedCase, ...]:
    infos = [ImplementationInfo.model_validate(i, from_attributes=True) for i in items().values()]
    found = resolve.shipped_matrices()[name]
    return tuple(resolve.resolve(matrix.load(found), infos, device="cuda").cases)


def with_control(
    name: str, direction: Direction, mode: Mode = Mode.STREAM, op: str = "nsa_attention"
) -> list[PlannedCase]:
    """Those of the matrix that has the name of the op."""
    return [
        p
        for p in planned(op)
        if p.case.op == op
        and name in p.implementations
        and (p.case.direction, p.case.timing.mode) == (direction, mode)
    ]


@pytest.mark.parametrize("name", REQUIRED)
def test_it_is_planned_in_every_direction_and_in_a_graph(name: str) -> None:
    for direction in Direction:
        assert with_control(name, direction), direction
    assert with_control(name, Direction.FORWARD, Mode.GRAPH)


@pytest.mark.parametrize(
    ("op", "required"), [("nsa_attention", REQUIRED), ("nsa_without_window", WITHOUT_WINDOW)]
)
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_it_is_wrong_there(direction: Direction, op: str, required: tuple[str, ...]) -> None:
    """A window that holds all keys lacks none that is one short, and where all blocks are selected
    nobody's scores matter: there they would decline. What is drawn of one seed is the same in each
    direction and mode."""
    cases = {p.id: p.case for name in required for p in with_control(name, direction, op=op)}
    (case,) = cases.values()
    sets = sets_of(case)
    found = {}
    for name in required:
        with pytest.raises(Failure) as caught:
            arm_of(items()[op, name], case, sets, Random(0)).check()
        found[name] = caught.value.status
        sets.repair()
    assert found == dict.fromkeys(required, Status.WRONG)


def test_a_time_that_cannot_be_is_put_to_the_proof_in_each_way() -> None:
    """Where a control of the roofline is planned, PyTorch's own loop does what it looks up: what
    refuses all of its cases proves nothing."""
    for name, direction, mode in (
        ("recalled_output", Direction.FORWARD, Mode.STREAM),
        ("recalled_gradients", Direction.BACKWARD, Mode.STREAM),
        ("recalled_step", Direction.STEP, Mode.STREAM),
        ("products_recalled_in_a_graph", Direction.FORWARD, Mode.GRAPH),
    ):
        shape = with_control(name, direction, mode)[0].case.shape
        gathered = shape["T"] * shape["H"] * shape["n_selected"] * shape["block_size"]
        most = MOST_KEPT if direction.differentiates else MOST_GATHERED
        assert shape["B"] * gathered * (shape["D"] + shape["Dv"]) <= most, (name, shape)
        assert 2 * shape["B"] * shape["T"] * shape["HQ"] * shape["Dv"] <= roofline.MOST_BYTES


def test_a_step_that_is_looked_up_is_under_the_bound_also_on_a_slow_host() -> None:
    """Looking one up takes 0.94 ms on the slowest host of an H200 that was seen: autograd is its
    host's. With the roofline's margin, and as much to spare."""
    looked_up_ms, margin, tflop_s = 0.94, 1.1, 796
    for p in with_control("recalled_step", Direction.STEP, Mode.STREAM):
        bound_ms = ops.work(p.case).flops / tflop_s / 1e9
        assert bound_ms > 1.3 * margin * looked_up_ms


def test_no_case_of_many_tokens_carries_what_is_the_same_at_few() -> None:
    """Every control of the outputs computes by the loop, which takes minutes at such lengths."""
    of_roofline = {
        i.name for i in items().values() if i.role is Role.CONTROL and i.caught_by == "roofline"
    }
    controls = {i.name for i in items().values() if i.role is Role.CONTROL} - of_roofline
    for p in planned("nsa_attention"):
        if p.case.shape["T"] > 512:
            assert not controls & set(p.implementations), p.case
        if p.case.dtype is DType.FLOAT16:
            assert not of_roofline & set(p.implementations), p.case


def test_the_ladders_are_whole() -> None:
    """Of each head layout, both directions have the lengths that a decision is made of, and the
    state of the L2 and the mode have their own."""
    lengths: dict[tuple[int, int, Direction], set[int]] = {}
    for p in planned("nsa_attention"):
        c, s = p.case, p.case.shape
        if (c.dtype, c.l2, c.timing.mode) == (DType.BFLOAT16, L2.COLD, Mode.STREAM) and (
            (s["B"], s["D"]) == (1, 128)
        ):
            lengths.setdefault((s["HQ"], s["H"], c.direction), set()).add(s["T"])
    for layout in ((64, 4), (32, 8), (32, 2), (16, 1)):
        for direction in (Direction.FORWARD, Direction.BACKWARD):
            assert {8192, 16384, 32768} <= lengths[*layout, direction]
            if layout == (64, 4):
                assert {2048, 65536} <= lengths[*layout, direction]
    assert {8192, 16384, 32768} <= lengths[64, 4, Direction.STEP]
    assert lengths[32, 8, Direction.STEP] and lengths[32, 2, Direction.STEP]
    assert 131072 in lengths[64, 4, Direction.FORWARD]
    others = {(p.case.l2, p.case.timing.mode, p.case.dtype) for p in planned("nsa_attention")}
    assert (L2.WARM, Mode.STREAM, DType.BFLOAT16) in others
    assert (L2.COLD, Mode.STREAM, DType.FLOAT16) in others
    graphs = [p.case.shape["T"] for p in planned("nsa_attention") if p.case.mode is Mode.GRAPH]
    assert {2048, 8192, 32768} <= set(graphs)
