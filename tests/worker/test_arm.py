"""Which kernel is blamed for a change, and what one kernel or case leaves for the next."""

import gc
import os
import signal
import sys
import weakref
from itertools import count
from random import Random

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nsabench.failure import Failure
from nsabench.implementations.baselines.selection_rows import gqa
from nsabench.model.case import FixedCount, Timing
from nsabench.model.vocabulary import DType, Status
from nsabench.registry import Unsupported
from nsabench.worker.arm import CaseArm
from nsabench.worker.calls import CallResult
from nsabench.worker.inputs import InputSets
from nsabench.worker.timing.timer import CpuTimer
from tests.checking import a_case, arm_of, registered, sets_of
from tests.checking import measured as measured_by_checker

SHAPE = {"N": 6, "H": 2, "D": 32, "Dv": 32, "L": 40}
CASE = a_case("selection_rows", SHAPE, timing=Timing(rotate=3))


def honest(q, k, v, *, sm_scale):
    return gqa(q, k, v, sm_scale)


def counted(call):
    """Return an implementation that gives `call` the number of the call, from 1, and inputs."""
    numbers = count(1)

    def implementation(q, k, v, *, sm_scale):
        return call(next(numbers), q, k, v, sm_scale)

    return implementation


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, given=(), options=None):
        return function(*given, **(options or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, given=(), options=None):
        return function(*given, **(options or {}))


def note_nothing(*_):
    """Stand for a profile function."""


def item(call=honest, name="mine"):
    return registered("selection_rows", name, call)


def failing(first=lambda q: None):
    """Return an implementation that calls `first` and then fails."""

    def fails(q, k, v, *, sm_scale):
        first(q)
        raise ValueError("not today")

    return fails


def with_rounds(count):
    stopping = FixedCount(kind="fixed_count", rounds=count)
    return CASE.model_copy(update={"timing": Timing(stopping=stopping)})


def observations(*calls, timer=None, case=CASE):
    arms = [item(call, f"arm{place}") for place, call in enumerate(calls)]
    return measured_by_checker(case, arms, timer=timer).observations


def test_the_order_of_the_calls_cannot_be_known_beforehand():
    case = with_rounds(20)
    orders = [[o.samples.order for o in observations(*[honest] * 3, case=case)] for _ in range(2)]
    assert orders[0] != orders[1]


def arm_on(sets):
    return arm_of(item(), CASE, sets, Random(0))


def damage(sets, *indices):
    for index in indices:
        sets.sets[index].tensors["q"].add_(1.0)


def test_an_ordered_call_is_not_blamed_for_what_others_changed_unseen():
    """The ordered call uses a set of inputs on which no earlier call of this arm was checked."""
    sets = sets_of(CASE)
    arm = arm_on(sets)
    arm.check()
    damage(sets, *range(1, len(sets)))
    arm.finish_samples()
    assert sets.is_written_to


def test_all_sets_are_repaired_when_one_is_found_changed():
    sets = sets_of(CASE)
    arm = arm_on(sets)
    damage(sets, 0, 1)
    with pytest.raises(Failure, match="it changed its input q"):
        arm.outputs.check(CallResult(0, {"output": torch.zeros(1)}), "")
    assert not sets.find_change()
    assert not sets.is_written_to


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class ForgetfulTimer(CpuTimer):
    forgot = 0

    def forget(self):
        self.forgot += 1


@pytest.mark.usefixtures("uncollected")
def test_a_case_finds_nothing_of_those_before_it():
    """A failure's traceback holds frames, which hold the inputs and graphs of the case."""
    timer = ForgetfulTimer()
    for call in (failing(), honest):
        observations(call, timer=timer)
    assert timer.forgot == 2
    assert not [thing for thing in gc.get_objects() if type(thing) in (CaseArm, InputSets)]


def test_who_changes_inputs_and_fails_leaves_them_right_for_the_next():
    found = observations(failing(lambda q: q.add_(1.0)), honest)
    assert [o.status for o in found] == [Status.CRASHED, Status.OK], found[1].reason


@pytest.mark.parametrize("from_call", [3, 6])
def test_writes_past_ones_own_inputs_are_ones_own_fault(from_call):
    """A kernel that writes out of bounds hits memory beside its inputs. Here it hits all other
    sets."""
    gc.collect()

    @counted
    def stray(call, q, k, v, sm_scale):
        if call >= from_call:
            [*_, sets] = (thing for thing in gc.get_objects() if type(thing) is InputSets)
            for index in range(len(sets)):
                held = sets.sets[index].tensors["q"]
                if held.data_ptr() != q.data_ptr():
                    held.add_(1.0)
        return gqa(q, k, v, sm_scale)

    found = observations(stray, honest)
    assert [o.status for o in found] == [Status.WRONG, Status.OK], found[1].reason
    assert "it changed its input q" in found[0].reason


def test_what_is_done_to_a_tensor_itself_stays_with_the_call():
    def marks(q, k, v, *, sm_scale):
        out = honest(q, k, v, sm_scale=sm_scale)
        k.requires_grad_(True)
        q.unsqueeze_(0)
        return out

    def strict(q, k, v, *, sm_scale):
        assert not k.requires_grad
        return honest(q, k, v, sm_scale=sm_scale)

    assert [(o.status, o.reason) for o in observations(marks, strict)] == [(Status.OK, "")] * 2


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.usefixtures("uncollected")
def test_what_a_failed_implementation_held_is_free_for_the_others(first):
    held, left = [], []

    def hold(q):
        large = q.clone()
        held.append(weakref.ref(large))
        raise ValueError("not today")

    def looks(q, k, v, *, sm_scale):
        left.extend(tensor() is not None for tensor in held)
        return honest(q, k, v, sm_scale=sm_scale)

    found = observations(*([failing(hold), looks] if first else [looks, failing(hold)]))
    assert {o.status for o in found} == {Status.OK, Status.CRASHED}
    assert not any(left)


LEAST = 5e-324
# A setting: how it is read, how it is changed, and to what.
SETTINGS = {
    "float32_matmul_precision": (
        *(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "medium",
    ),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled, False),
    "flushing of denormals": (lambda: LEAST * 1.0 == 0.0, torch.set_flush_denormal, True),
    "deterministic_algorithms": (
        *(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        True,
    ),
    "autocast on the CPU": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
        True,
    ),
    "timers": (
        lambda: signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0,
        lambda _: signal.setitimer(signal.ITIMER_VIRTUAL, 100),
        True,
    ),
    "switch interval": (sys.getswitchinterval, sys.setswitchinterval, 1.0),
    "profile function": (sys.getprofile, sys.setprofile, note_nothing),
    "modes of torch functions": (
        *(torch._C._len_torch_function_stack, lambda _: FunctionMode().__enter__()),
        1,
    ),
    "modes of torch dispatch": (
        *(torch._C._len_torch_dispatch_stack, lambda _: DispatchMode().__enter__()),
        1,
    ),
    "sdp.order": (
        *(torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order),
        [0, 1, 2, 3, 4],
    ),
}
HARMLESS = {
    "threshold of garbage": (gc.get_threshold, lambda most: gc.set_threshold(*most), (1, 1, 1)),
    "garbage collection from": (gc.isenabled, lambda on: gc.disable(), False),
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit, 900),
    "environment (NEW_HERE)": (
        lambda: os.environ.get("NEW_HERE"),
        lambda _: os.environ.update(NEW_HERE="1"),
        "1",
    ),
}


@pytest.mark.parametrize("setting", HARMLESS)
def test_what_reaches_the_next_implementation_is_set_back_and_named(setting):
    get, change, value = HARMLESS[setting]
    before, seen = get(), []

    def changes(*tensors, sm_scale):
        change(value)
        return gqa(*tensors, sm_scale)

    def looks(*tensors, sm_scale):
        seen.append(get())
        return gqa(*tensors, sm_scale)

    first, second = observations(changes, looks)
    assert [first.status, second.status] == [Status.OK, Status.OK], first.reason
    assert set(seen) == {before} == {get()}
    assert any(setting in note for note in first.notes) and not second.notes


@pytest.mark.parametrize("then", ["returns", "fails"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_changed_in_a_timed_call_are_set_back(setting, then):
    get, change, value = SETTINGS[setting]

    @counted
    def changes(call, q, k, v, sm_scale):
        out = gqa(q, k, v, sm_scale)
        if call >= 8:
            change(value)
            if then == "fails":
                raise ValueError("not today")
        return out

    before = get()
    assert before != value
    [found] = observations(changes)
    assert get() == before
    assert found.status is (Status.WRONG if then == "returns" else Status.CRASHED)
    assert then == "fails" or setting in found.reason


def test_a_sparse_result_is_wrong():
    [found] = observations(lambda *tensors, sm_scale: gqa(*tensors, sm_scale).to_sparse())
    assert found.status is Status.WRONG
    assert "its output has layout torch.sparse_coo" in found.reason


def test_who_answers_a_timed_call_with_the_one_before_is_told_so():
    """The kernel is right in the first checks. With many sets, two calls in turn rarely have equal
    inputs."""
    late = []

    @counted
    def lagging(call, q, k, v, sm_scale):
        late.append(gqa(q, k, v, sm_scale))
        return late[-1 if call <= 3 else -2].clone()

    [found] = observations(lagging, case=CASE.model_copy(update={"timing": Timing(rotate=20)}))
    assert found.status is Status.WRONG
    assert "is the output of an earlier call" in found.diagnosis


class Watched(CpuTimer):
    """A timer that says what it times now."""

    now = ""

    def sample(self, *given):
        self.now = "timed"
        timed = super().sample(*given)
        self.now = ""
        return timed

    def burst(self, *given):
        self.now = "burst"
        burst = super().burst(*given)
        self.now = ""
        return burst


@pytest.mark.parametrize("when", ["ordered", "timed", "burst"])
def test_the_errors_of_every_call_that_is_looked_at_count(when):
    """All calls are computed in float32, except calls of one kind in bfloat16. The largest error
    counts."""
    timer = Watched()

    @counted
    def tires(call, q, k, v, sm_scale):
        # The first two calls are checked alone. Later untimed calls are ordered calls.
        if (timer.now or ("ordered" if call > 2 else "")) != when:
            return gqa(q, k, v, sm_scale)
        return gqa(q.bfloat16(), k.bfloat16(), v.bfloat16(), sm_scale).to(q.dtype)

    case = CASE.model_copy(update={"dtype": DType.FLOAT32})
    exact, tired = observations(honest, tires, timer=timer, case=case)
    assert tired.status is Status.OK  # the mean error is within the tolerance
    assert exact.rel_l2 < 1e-6 and tired.rel_l2 > 1e-3


def test_what_may_be_found_wrong_beside_the_baselines_is_diagnosed_meanwhile():
    """One wrong row of 4,096 leaves the mean error far below the tolerance."""
    case = CASE.model_copy(update={"shape": {"N": 512, "H": 8, "D": 32, "Dv": 32, "L": 40}})

    def loses_a_row(q, k, v, *, sm_scale):
        out = honest(q, k, v, sm_scale=sm_scale)
        out[-1, -1] = 0
        return out

    right, wrong = observations(honest, loses_a_row, case=case)
    assert (right.status, right.diagnosis) == (Status.OK, "")
    assert right.worst_row is not None and right.worst_row < 1e-3
    assert wrong.status is Status.OK and wrong.mae is not None and wrong.mae < 1e-4
    assert wrong.worst_row is not None and wrong.worst_row > 0.5
    assert wrong.worst_row_at == "output[511, 7]"
    assert "index 511" in wrong.diagnosis


def test_calls_one_behind_the_other_are_timed_too():
    [found] = observations(honest)
    assert found.status is Status.OK, found.reason
    # Eight bursts, or fewer if a busy host used up the arm's time.
    assert 2 <= len(found.bursts.time_ms) <= 8 and len(set(found.bursts.calls)) == 1


@pytest.mark.parametrize("fault", ["wrong", "raises", "writes", "settings"])
def test_what_a_call_does_only_among_others_is_seen(fault):
    """A kernel can tell a burst: its output is not checked between two calls."""
    timer = Watched()

    def sprints(q, k, v, *, sm_scale):
        out = gqa(q, k, v, sm_scale)
        if timer.now == "burst":
            if fault == "raises":
                raise ValueError("among others")
            if fault == "writes":
                q.add_(1)
            if fault == "settings":
                torch.backends.cudnn.deterministic = True
            if fault == "wrong":
                out.zero_()
        return out

    [found] = observations(sprints, timer=timer)
    assert found.status is (Status.CRASHED if fault == "raises" else Status.WRONG), found.reason
    assert not found.samples.time_ms and not found.bursts.time_ms


OVERWRITTEN = "a later call overwrote what an earlier one had returned"


@pytest.mark.parametrize(("buffers", "from_call", "rounds"), [(1, 1, 100), (2, 6, 100), (8, 4, 3)])
def test_an_output_lives_on(buffers, from_call, rounds):
    """A kernel may begin to use a ring of buffers after the calls that are always checked."""
    ring = [torch.empty(6, 2, 32, dtype=torch.float16) for _ in range(buffers)]

    @counted
    def in_a_ring(call, q, k, v, sm_scale):
        out = gqa(q, k, v, sm_scale)
        return ring[call % buffers].copy_(out) if call >= from_call else out

    # Some of many rounds are checked, at random.
    [observation] = observations(in_a_ring, case=with_rounds(rounds))
    assert (observation.status, observation.reason) == (Status.WRONG, OVERWRITTEN)


def test_an_output_lives_on_to_the_end():
    """The kernel overwrites its first outputs only after 40 calls."""
    ring = []  # the first outputs, and copies of their values

    @counted
    def in_a_ring(call, q, k, v, sm_scale):
        out = gqa(q, k, v, sm_scale)
        if call <= 5:
            ring.append((out, out.clone()))
        for returned, values in ring if call > 40 else ():
            if not torch.equal(out, values):  # inputs repeat, and equal values would show nothing
                returned.copy_(out)
        return out if call <= 5 else out.clone()

    [observation] = observations(in_a_ring, case=with_rounds(60))
    assert (observation.status, observation.reason) == (Status.WRONG, OVERWRITTEN)


def test_a_result_may_lie_apart_in_memory():
    """The output is a view of every other value, which callers accept."""

    def apart(q, k, v, *, sm_scale):
        return torch.stack([gqa(q, k, v, sm_scale)] * 2, -1)[..., 0]

    assert [one.status for one in observations(apart, honest)] == [Status.OK, Status.OK]


@pytest.mark.parametrize("right_calls", [0, 1, 2, 12])
def test_a_kernel_that_declines_after_a_right_answer_has_failed(right_calls):
    """Otherwise a kernel could decline wherever it is slow, and still count as right."""

    @counted
    def declining(call, q, k, v, sm_scale):
        if call > right_calls:
            raise Unsupported("too slow here")
        return gqa(q, k, v, sm_scale)

    [found] = observations(declining, case=with_rounds(20))
    if not right_calls:
        assert (found.status, found.reason) == (Status.UNSUPPORTED, "too slow here")
    else:
        assert found.status is Status.CRASHED
        assert found.reason == "it declined the case after a right answer: too slow here"
