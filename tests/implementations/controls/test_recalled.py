"""Controls that recognise their inputs are right in every call, and compute once for each set."""

from random import Random

import pytest
import torch

from nsabench import ops, registry
from nsabench.checker import compare as parity
from nsabench.checks import DeviceLimits, run_checks
from nsabench.failure import Failure
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.implementations.controls import roofline
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Catch, Direction, DType, Mode, Role, Runs, Status
from nsabench.planning import matrix, resolve
from nsabench.registry import Honest
from nsabench.worker.timing import ceilings
from nsabench.worker.timing.timer import CpuTimer
from tests.checking import a_case, arm_of, observations, rounds, rows_of, sets_of
from tests.checking import measured as measured_by_checker
from tests.implementations.controls.test_every_op import SHAPES
from tests.true_caches import true_caches

DISTRIBUTION = {"selection_ranges": "disjoint", "sliding_window": "dense"}


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch, one_thread):
    monkeypatch.setattr(roofline, "_memories", {})


@pytest.fixture(scope="module")
def of_this_cpu():
    with true_caches():
        return DeviceLimits.from_run(ceilings.measure("cpu", CpuTimer()))


def make_case(op, direction, dtype, rotate=3):
    fields = {"distribution": DISTRIBUTION.get(op, "random"), "timing": rounds(60, rotate=rotate)}
    return a_case(op, SHAPES[op], direction=direction, dtype=dtype, **fields)


def named(op, name):
    (item,) = [i for i in registry.load() if (i.op, i.name) == (op, name)]
    return item


NSA = {"B": 1, "T": 384, "HQ": 16, "H": 2, "D": 64, "Dv": 64}
NSA |= {"block": 32, "stride": 16, "block_size": 32, "n_selected": 6, "window": 128}


@pytest.mark.parametrize(
    ("op", "direction", "name"),
    [
        ("nsa_attention", Direction.FORWARD, "recalled_output"),
        ("nsa_attention", Direction.STEP, "recalled_step"),
        ("decode_dense", Direction.FORWARD, "remembered_by_content"),
    ],
)
def test_recalled_outputs_are_caught_by_the_roofline(monkeypatch, of_this_cpu, op, direction, name):
    """The time of the fastest round is used for all, since other processes may slow the others."""
    monkeypatch.setitem(SHAPES, "nsa_attention", NSA)
    monkeypatch.setitem(SHAPES, "decode_dense", SHAPES["decode_dense"] | {"S": 8000, "B": 4})
    monkeypatch.setitem(DISTRIBUTION, "nsa_attention", "dense")
    case = make_case(op, direction, DType.FLOAT32, rotate=2)
    case = case.model_copy(update={"timing": rounds(8, rotate=2)})
    item = named(op, name).model_copy(update={"devices": (Runs.CPU,)})
    measured = measured_by_checker(case, [item])
    assert [o.reason for o in measured.observations] == [""]
    for observation in measured.observations:
        times = observation.samples.time_ms
        times[:] = [min(times)] * len(times)
    findings, [judged] = run_checks(rows_of(case, [item], measured), of_this_cpu)
    assert judged.caught is Catch.CAUGHT, [f.sentence for f in findings]


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("op", ["selection_blocks", "selection_ranges", "sliding_window"])
def test_recalled_gradients_are_right_in_any_order_of_inputs(op, dtype):
    case = make_case(op, Direction.BACKWARD, dtype)
    item = named(op, "recalled_gradients").model_copy(update={"devices": (Runs.CPU,)})
    [observation] = observations(case, [item])
    assert observation.status is Status.OK, observation.reason
    assert len(observation.samples.time_ms) == 60


@pytest.mark.parametrize(("count", "rotate"), [(8, 2), (20, 3), (60, 5)])
def test_remembered_outputs_are_right_in_any_order_of_inputs(monkeypatch, count, rotate):
    """Nearly all calls are look-ups, even in the fewest rounds that a matrix may have."""
    calls, computed = [], []

    def counted(*arguments, **options):
        computed.append(1)
        return heads_as_queries(*arguments, **options)

    honest = Honest(ops.get("selection_rows"), "counted", counted)

    def called(*arguments, **options):
        calls.append(1)
        return roofline.remembered_by_content(honest, *arguments, **options)

    item = named("selection_rows", "remembered_by_content")
    item = item.model_copy(update={"devices": (Runs.CPU,), "call": called})
    timing = rounds(count, warmup_s=0.02, rotate=rotate)
    case = a_case("selection_rows", {"N": 6, "H": 2, "D": 32, "Dv": 32, "L": 40}, timing=timing)
    [observation] = observations(case, [item])
    assert observation.status is Status.OK, observation.reason
    assert len(observation.samples.time_ms) == count
    # All timed calls are look-ups, except at most two for each set.
    assert len(calls) - len(computed) >= count - 2 * rotate


def recording(monkeypatch, case):
    """Return an arm, and a function that acts as a replay on a set and returns its output and the
    oracle's."""
    sets = sets_of(case)
    arm = arm_of(named(case.op, "recalled_in_a_graph"), case, sets, Random(0))
    arm.check()
    monkeypatch.setattr(roofline, "is_captured", lambda tensor: True)

    def replay(index):
        answer = arm.prepare_unchecked(index)()
        return answer.values["output"], ops.get(case.op).oracle(sets.sets[index])

    return arm, replay


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("op", ["decode_dense", "selection_ranges"])
def test_a_graph_looks_up_the_right_output(monkeypatch, op, dtype):
    case = make_case(op, Direction.FORWARD, dtype, rotate=2)
    arm, replay = recording(monkeypatch, case)
    rng = Random(1)
    for index in [0, 1, 0, 1, 0]:
        output, expected = replay(index)
        parity.check_values("output", output, expected, case)
        arm.sets.swap(index, rng)
    # The control reads only the first input, so changes of the others do not change its output.
    output, _ = replay(0)
    for tensor in list(arm.sets.sets[0].tensors.values())[1:]:
        tensor.zero_()
    assert torch.equal(replay(0)[0], output)


def test_a_graph_declines_unknown_inputs(monkeypatch):
    case = make_case("decode_dense", Direction.FORWARD, DType.BFLOAT16, rotate=6)
    _, replay = recording(monkeypatch, case)
    with pytest.raises(Failure, match="inputs") as declined:
        for index in range(6):
            replay(index)
    assert declined.value.status is Status.UNSUPPORTED


def test_controls_are_planned_only_where_remembering_pays(tmp_path):
    items = registry.load()
    infos = [ImplementationInfo.model_validate(i, from_attributes=True) for i in items]
    path = tmp_path / "m.yaml"
    path.write_text(
        "op: decode_dense\naxes: {dtype: bfloat16}\ninclude:\n"
        "  - {B: 8, S: [128, 2048, 32768], HQ: 64, H: 4, D: 128}\ntiming: {mode: graph}\n---\n"
        "op: decode_dense\naxes: {dtype: bfloat16}\ninclude:\n"
        "  - {B: 8, S: [128, 2048, 32768], HQ: 64, H: 4, D: 128}\n---\n"
        "op: selection_blocks\naxes: {dtype: bfloat16, direction: [forward, backward]}\ninclude:\n"
        "  - {B: 1, T: [512, 8192], HQ: 64, H: 4, D: 128, S: 16, block_size: 64}\n"
    )
    planned = resolve.resolve(matrix.load(path), infos, device="cuda").cases
    where = {}
    for p in planned:
        size = p.case.shape.get("S" if p.case.op == "decode_dense" else "T", 0)
        for name in p.implementations:
            if any(i.name == name and i.role is Role.CONTROL for i in items):
                place = (p.case.op, p.case.direction, p.case.timing.mode, size)
                where.setdefault(name, set()).add(place)
    forward, graph = Direction.FORWARD, Mode.GRAPH
    assert where["recalled_in_a_graph"] == {("decode_dense", forward, graph, 32768)}
    assert where["remembered_by_content"] == {("decode_dense", forward, Mode.STREAM, 32768)}
    assert where["recalled_gradients"] == {
        ("selection_blocks", Direction.BACKWARD, Mode.STREAM, 8192)
    }
    both_ends = {("decode_dense", forward, graph, size) for size in (128, 32768)}
    assert where["patched_replay"] == where["repeating_wrapper"] == both_ends
    backward = {("selection_blocks", Direction.BACKWARD, Mode.STREAM, t) for t in (512, 8192)}
    assert where["sleeping_backward"] == backward and backward < where["patched_clocks"]
