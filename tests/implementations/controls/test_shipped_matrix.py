"""The controls that the shipped matrix of nsa_attention plans."""

from functools import cache

import pytest

from nsabench import registry
from nsabench.implementations.baselines.nsa_attention import MOST_GATHERED, MOST_KEPT
from nsabench.implementations.controls import roofline
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Direction, DType, Mode, Role
from nsabench.planning import matrix, resolve

REQUIRED = (
    "gates_all_one",
    "window_one_short",
)


@cache
def items():
    return {(i.op, i.name): i for i in registry.load()}


@cache
def planned(name):
    infos = [ImplementationInfo.model_validate(i, from_attributes=True) for i in items().values()]
    found = resolve.shipped_matrices()[name]
    return tuple(resolve.resolve(matrix.load(found), infos, device="cuda").cases)


def with_control(name, direction, mode=Mode.STREAM, op="nsa_attention"):
    """Return the cases of the matrix of this op that plan the control."""
    return [
        p
        for p in planned(op)
        if p.case.op == op
        and name in p.implementations
        and (p.case.direction, p.case.timing.mode) == (direction, mode)
    ]


@pytest.mark.parametrize("name", REQUIRED)
def test_controls_are_planned_in_every_direction_and_in_a_graph(name):
    for direction in Direction:
        assert with_control(name, direction), direction
    assert with_control(name, Direction.FORWARD, Mode.GRAPH)


def test_controls_of_the_roofline_have_a_case_in_each_direction():
    """The baseline that the control wraps accepts the sizes of the first such case."""
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


def test_long_cases_have_controls_of_the_roofline_alone():
    """The baseline of the other controls takes minutes at such lengths."""
    of_roofline = {
        i.name for i in items().values() if i.role is Role.CONTROL and i.caught_by == "roofline"
    }
    controls = {i.name for i in items().values() if i.role is Role.CONTROL} - of_roofline
    for p in planned("nsa_attention"):
        if p.case.shape["T"] > 512:
            assert not controls & set(p.implementations), p.case
        if p.case.dtype is DType.FLOAT16:
            assert not of_roofline & set(p.implementations), p.case
