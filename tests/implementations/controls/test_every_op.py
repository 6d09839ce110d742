"""The controls of every op, on the CPU: each is caught, by the check that it names."""

from random import Random

import pytest
import torch

from nsabench import ops, registry
from nsabench.checks import DeviceLimits, Effect, run_checks
from nsabench.checks.controls import decide_catch
from nsabench.delivery import draw
from nsabench.failure import Failure
from nsabench.model.case import Timing
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Catch, Direction, DType, Role, Runs, Status
from tests.checking import a_case, arm_of, desk_of, rounds, rows_of, sets_of
from tests.checking import measured as measured_by_checker

pytestmark = pytest.mark.usefixtures("one_thread")
HEADS = {"HQ": 4, "H": 2, "D": 32, "Dv": 32}
CACHE = {"B": 2, "S": 150, **HEADS}
SHAPES = {
    "selection_rows": {"N": 8, "H": 4, "D": 32, "Dv": 32, "L": 96},
    "selection_varlen": {"N": 8, "H": 4, "D": 32, "Dv": 32, "L": 48},
    "selection_ranges": {"B": 2, "S": 4, "G": 2, "H": 4, "D": 32, "Dv": 32}
    | {"S_kv": 96, "n_spans": 3, "L": 40},
    "selection_blocks": {"B": 1, "T": 96, **HEADS, "S": 3, "block_size": 8},
    "sliding_window": {"B": 3, "T": 96, **HEADS, "window": 24},
    "compressed": {"B": 3, "T": 96, **HEADS, "block": 8, "stride": 4},
    "decode_step": {**CACHE, "block": 8, "stride": 4, "block_size": 16, "n_selected": 4}
    | {"window": 24},
    "decode_compressed": {**CACHE, "block": 8, "stride": 4},
    "decode_selected": {**CACHE, "block_size": 16, "n_selected": 4},
    "decode_window": {**CACHE, "window": 24},
    "decode_dense": CACHE,
    "causal_attention": {"B": 3, "T": 32, **HEADS},
    "nsa_attention": {"B": 2, "T": 96, **HEADS, "block": 8, "stride": 4, "block_size": 16}
    | {"n_selected": 4, "window": 12},
    "nsa_without_window": {"B": 2, "T": 96, **HEADS, "block_size": 8, "n_selected": 4},
}
DISTRIBUTIONS = {
    "selection_rows": ["dense"],
    "selection_varlen": ["spread", "empty_rows"],
    "selection_ranges": ["disjoint", "overlapping", "empty_rows"],
    "selection_blocks": ["random", "packed", "empty_rows"],
    "sliding_window": ["dense", "packed"],
    "compressed": ["dense", "packed"],
    "causal_attention": ["packed"],
    "nsa_attention": ["packed"],
    "nsa_without_window": ["packed"],
    **{op: ["random"] for op in SHAPES if op.startswith("decode")},
}
# The first comparison finds these right; a later check catches them.
FORWARD = (
    *("batch_and_skip", "relative_error", "patched_clocks", "sleeping_wrapper"),
    "hidden_in_a_thread",
)
LATER = {
    Direction.FORWARD: (*FORWARD, "lost_tail_row"),
    Direction.BACKWARD: (
        *("patched_clocks", "sleeping_backward", "lost_tail_gradient", "lost_tail_of_the_last"),
        "lost_row_in_training",
    ),
}
LATER[Direction.STEP] = LATER[Direction.BACKWARD]
# Another process on the CPU may delay calls, and some tricks work only if calls follow each other
# fast.
ATTEMPTS = 3


def directions(op):
    """Return the directions to be tested. A step of nsa_without_window has the controls of
    nsa_attention."""
    all_of_them = ops.get(op).directions
    return all_of_them[:2] if op == "nsa_without_window" else all_of_them


controls = [i for i in registry.load() if i.role is Role.CONTROL and Runs.CPU in i.devices]
CASES = [
    (op, distribution, direction)
    for op in SHAPES
    for distribution in DISTRIBUTIONS[op]
    for direction in directions(op)
]


def make_case(op, distribution, direction, **sizes):
    fields = {"direction": direction, "distribution": distribution, "timing": rounds(15)}
    return a_case(op, SHAPES[op] | sizes, dtype=DType.BFLOAT16, **fields)


def of(case):
    def concerns(item):
        return ImplementationInfo.model_validate(item, from_attributes=True).concerns(case)

    return [i for i in controls if concerns(i)]


def fate(item, case):
    with pytest.raises(Failure) as caught:
        arm_of(item, case, sets_of(case), Random(0)).check()
    return caught.value


def test_the_ops_are_all_of_them():
    assert set(SHAPES) == set(ops.names()) == {i.op for i in controls}


@pytest.mark.parametrize(("op", "distribution", "direction"), CASES)
def test_parity_catches_controls(op, distribution, direction):
    case = make_case(op, distribution, direction)
    some = [i for i in of(case) if i.name not in LATER[direction]]
    assert len(some) >= (5 if direction is Direction.FORWARD else 2)
    for item in some:
        failure = fate(item, case)
        assert failure.status is Status.WRONG, (item.name, failure.reason)


@pytest.mark.parametrize(
    ("op", "name", "sizes"),
    [
        ("sliding_window", "one_key_short", {"T": 2000, "window": 1900}),  # shows in few rows
        ("sliding_window", "zero_gradients", {"window": 1}),
        ("compressed", "zero_gradients", {"T": 11}),
        ("decode_compressed", "stale_cache", {"S": 8}),
    ],
)
def test_a_control_declines_where_it_would_be_right(op, name, sizes):
    direction = Direction.BACKWARD if name == "zero_gradients" else Direction.FORWARD
    distribution = "random" if op.startswith("decode") else "dense"
    case = make_case(op, distribution, direction, **sizes)
    (item,) = [i for i in of(case) if i.name == name]
    assert fate(item, case).status is Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("op", "direction"), [(op, direction) for op in SHAPES for direction in directions(op)]
)
def test_checks_catch_the_other_controls(op, direction):
    case = make_case(op, DISTRIBUTIONS[op][0], direction)
    for _ in range(ATTEMPTS):
        became = caught_of(op, direction, case)
        if set(became.values()) == {Catch.CAUGHT}:
            break
    assert became == dict.fromkeys(LATER[direction], Catch.CAUGHT)


def caught_of(op, direction, case):
    cheats = [i for i in of(case) if i.name in LATER[direction]]
    assert {i.name for i in cheats} == set(LATER[direction])
    wrapped = {i.wraps for i in cheats}
    honest = [i for i in registry.load() if i.op == op and i.name in wrapped]
    some = [*honest, *cheats]
    rows = rows_of(case, some, measured_by_checker(case, some))
    findings, _ = run_checks(rows, DeviceLimits())
    accused = {f.implementation for f in findings if f.effect is not Effect.NOTE}
    assert not accused & {i.name for i in honest}
    return {
        r.implementation: decide_catch(r, rows, findings) for r in rows if r.role is Role.CONTROL
    }


@pytest.mark.parametrize(
    "op, distribution",
    [  # `recorded` has its own sizes
        (op, name) for op in SHAPES for name in ops.get(op).distributions if name != "recorded"
    ],
)
def test_inputs_are_drawn_again_from_their_seed(op, distribution):
    """An op keeps no memory of its inputs, so a repair restores all of them."""
    shape = SHAPES[op] | ({"B": 1} if "B" in SHAPES[op] else {})
    if (op, distribution) == ("selection_blocks", "dense"):
        shape = shape | {"S": 12}
    case = a_case(op, shape, distribution=distribution, timing=Timing(rotate=2))
    sets = sets_of(case)
    sets.swap(0, Random())
    for index in range(len(sets)):
        again = draw(case, desk_of(sets).seeds[sets.ids[index]], "cpu")[0].tensors
        for name, held in sets.sets[index].tensors.items():
            assert torch.equal(again[name], held), name
    for inputs in sets.sets:
        for tensor in inputs.tensors.values():
            if tensor.is_floating_point():
                tensor.zero_()
    assert sets.repair() and sets.find_change() == ""
