"""Which kernel is blamed for a change, and what one kernel or case leaves for the next."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from nsabench.failure import Failure
from nsabench.implementations.baselines.selection_rows import gqa
from nsabench.model.case import Case, FixedCount, Timing
from nsabench.model.measurement import Observation
from nsabench.model.vocabulary import DType, Status
from nsabench.registry import Implementation, Unsupported
from nsabench.worker.arm import CaseArm
from nsabench.worker.calls import CallResult
from nsabench.worker.inputs import InputSets
from nsabench.worker.timing.timer import Call, CpuTimer, Timed
from tests.checking import a_case, arm_of, registered, sets_of
from tests.checking import measured as measured_by_checker

SHAPE = {"N": 6, "H": 2, "D": 32, "Dv": 32, "L": 40}
CASE = a_case("selection_rows", SHAPE, timing=Timing(rotate=3))


def honest(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return gqa(q, k, v, sm_scale)


def item(call: Callable[..., Tensor] = honest, name: str = "mine") -> Implementation:
    return registered("selection_rows", name, call)


def observations(
    *calls: Callable[..., Tensor], timer: CpuTimer | None = None, case: Case = CASE
) -> list[Observation]:
    arms = [item(call, f"arm{place}") for place, call in enumerate(calls)]
    return measured_by_checker(case, arms, timer=timer).observations


def test_the_order_of_the_calls_cannot_be_known_beforehand() -> None:
    timing = Timing(rotate=3, warmup_s=0.001, stopping=FixedCount(kind="fixed_count", rounds=20))
    case = a_case("selection_rows", SHAPE, timing=timing)
    orders = [[o.samples.order for o in observations(*[honest] * 3, case=case)] for _ in range(2)]
    assert orders[0] != orders[1]


def arm_on(sets: InputSets) -> CaseArm:
    return arm_of(item(), CASE, sets, Random(0))


def damage(sets: InputSets, *indices: int) -> None:
    for index in indices:
        sets.sets[index].tensors["q"].add_(1.0)


def test_an_ordered_call_is_not_blamed_for_what_others_changed_unseen() -> None:
    """Its data come from a set that this arm's own calls were not compared on."""
    sets = sets_of(CASE)
    arm = arm_on(sets)
    arm.check()
    damage(sets, *range(1, len(sets)))
    arm.finish_samples()
    assert sets.is_written_to


def test_all_sets_are_repaired_when_one_is_found_changed() -> None:
    sets = sets_of(CASE)
    arm = arm_on(sets)
    damage(sets, 0, 1)
    with pytest.raises(Failure, match="it changed its input q"):
        arm.outputs.check(CallResult(0, {"output": torch.zeros(1)}), "")
    assert not sets.find_change()
    assert not sets.is_written_to


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class ForgetfulTimer(CpuTimer):
    forgot = 0

    def forget(self) -> None:
        self.forgot += 1


@pytest.mark.usefixtures("uncollected")
def test_a_case_finds_nothing_of_those_before_it() -> None:
    """A failure's traceback holds its frames, and they the inputs and the graphs of the case."""

    def fails(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        raise ValueError("not today")

    timer = ForgetfulTimer()
    for call in (fails, honest):
        observations(call, timer=timer)
    assert timer.forgot == 2
    assert not [thing for thing in gc.get_objects() if type(thing) in (CaseArm, InputSets)]


def the_sets() -> InputSets:
    """Return the input sets that stray writes may hit. Input sets of earlier tests were
    collected."""
    return [thing for thing in gc.get_objects() if type(thing) is InputSets][-1]


def test_who_changes_inputs_and_fails_leaves_them_right_for_the_next() -> None:
    def fails(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        q.add_(1.0)
        raise ValueError("not today")

    found = observations(fails, honest)
    assert [o.status for o in found] == [Status.CRASHED, Status.OK], found[1].reason


@pytest.mark.parametrize("from_call", [3, 6])
def test_writes_past_ones_own_inputs_are_ones_own_fault(from_call: int) -> None:
    """A kernel that writes out of bounds hits memory beside its inputs. Here it hits all other
    sets."""
    gc.collect()
    calls = 0

    def stray(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        nonlocal calls
        calls += 1
        if calls >= from_call:
            sets = the_sets()
            for index in range(len(sets)):
                held = sets.sets[index].tensors["q"]
                if held.data_ptr() != q.data_ptr():
                    held.add_(1.0)
        return honest(q, k, v, sm_scale=sm_scale)

    found = observations(stray, honest)
    assert [o.status for o in found] == [Status.WRONG, Status.OK], found[1].reason
    assert "it changed its input q" in found[0].reason


def test_what_is_done_to_a_tensor_itself_stays_with_the_call() -> None:
    def marks(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        out = honest(q, k, v, sm_scale=sm_scale)
        k.requires_grad_(True)
        q.unsqueeze_(0)
        return out

    def strict(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        assert not k.requires_grad
        return honest(q, k, v, sm_scale=sm_scale)

    assert [(o.status, o.reason) for o in observations(marks, strict)] == [(Status.OK, "")] * 2


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.usefixtures("uncollected")
def test_what_a_failed_implementation_held_is_free_for_the_others(first: bool) -> None:
    held: list[weakref.ref[Tensor]] = []
    left: list[bool] = []

    def fails(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        large = q.clone()
        held.append(weakref.ref(large))
        raise ValueError("not today")

    def looks(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        left.extend(tensor() is not None for tensor in held)
        return honest(q, k, v, sm_scale=sm_scale)

    found = observations(*([fails, looks] if first else [looks, fails]))
    assert {o.status for o in found} == {Status.OK, Status.CRASHED}
    assert not any(left)


LEAST = 5e-324
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]] = {
    "float32_matmul_precision": (
        *(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "medium",
    ),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled, False),
    "flushing of denormals": (lambda: LEAST * 1.0 == 0.0, torch.set_flush_denormal, True),
    "sdp.order": (
        *(torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order),
        [0, 1, 2, 3, 4],
    ),
}
HARMLESS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]] = {
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
def test_what_reaches_the_next_implementation_is_set_back_and_named(setting: str) -> None:
    get, change, value = HARMLESS[setting]
    before, seen = get(), []

    def changes(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        change(value)
        return honest(q, k, v, sm_scale=sm_scale)

    def looks(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        seen.append(get())
        return honest(q, k, v, sm_scale=sm_scale)

    first, second = observations(changes, looks)
    assert [first.status, second.status] == [Status.OK, Status.OK], first.reason
    assert set(seen) == {before} == {get()}
    assert any(setting in note for note in first.notes) and not second.notes


@pytest.mark.parametrize("then", ["returns", "fails"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_changed_in_a_timed_call_are_set_back(setting: str, then: str) -> None:
    get, change, value = SETTINGS[setting]
    calls = 0

    def changes(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        nonlocal calls
        calls += 1
        out = honest(q, k, v, sm_scale=sm_scale)
        if calls >= 8:
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


def test_a_sparse_result_is_wrong() -> None:
    def sparse(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        return honest(q, k, v, sm_scale=sm_scale).to_sparse()

    [found] = observations(sparse)
    assert found.status is Status.WRONG
    assert "its output has layout torch.sparse_coo" in found.reason


def test_who_answers_a_timed_call_with_the_one_before_is_told_so() -> None:
    """The kernel is right in the parity checks. Afterwards it returns the output of the previous
    call. With many sets, that call rarely has the same data."""
    case = CASE.model_copy(update={"timing": Timing(rotate=20)})
    late: list[Tensor] = []
    calls = 0

    def lagging(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        nonlocal calls
        calls += 1
        late.append(honest(q, k, v, sm_scale=sm_scale))
        return late[-1 if calls <= 3 else -2].clone()

    [found] = observations(lagging, case=case)
    assert found.status is Status.WRONG
    assert "is the output of an earlier call" in found.diagnosis


@pytest.mark.parametrize("when", ["ordered", "timed", "burst"])
def test_the_errors_of_every_call_that_is_looked_at_count(when: str) -> None:
    """All calls are computed in float32, except calls of one kind in bfloat16. The largest error
    counts."""
    case = CASE.model_copy(update={"dtype": DType.FLOAT32})
    calls, now = 0, ""

    class Timer(CpuTimer):
        def sample(self, arm: str, call: Call, retry: Callable[[], Call] | None = None) -> Timed:
            nonlocal now
            now = "timed"
            timed = super().sample(arm, call, retry)
            now = ""
            return timed

        def burst(self, calls: Sequence[Call], *how: Any) -> tuple[float, object]:
            nonlocal now
            now = "burst"
            burst = super().burst(calls, *how)
            now = ""
            return burst

    def tires(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        nonlocal calls
        calls += 1
        # The first two are looked at one by one, and those beside them, untimed, are ordered.
        if (now or ("ordered" if calls > 2 else "")) != when:
            return honest(q, k, v, sm_scale=sm_scale)
        rough = honest(q.bfloat16(), k.bfloat16(), v.bfloat16(), sm_scale=sm_scale)
        return rough.to(q.dtype)

    exact, tired = observations(honest, tires, timer=Timer(), case=case)
    assert calls > 5 and tired.status is Status.OK  # the mean error is within the gate's
    assert exact.rel_l2 is not None and tired.rel_l2 is not None
    assert exact.rel_l2 < 1e-6 and tired.rel_l2 > 1e-3


def test_what_may_be_found_wrong_beside_the_baselines_is_diagnosed_meanwhile() -> None:
    """One row of thousands: its mean error is far below the gate's tolerance."""
    case = CASE.model_copy(update={"shape": {"N": 512, "H": 8, "D": 32, "Dv": 32, "L": 40}})

    def loses_a_row(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
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


def test_calls_one_behind_the_other_are_timed_too() -> None:
    [found] = observations(honest)
    assert found.status is Status.OK, found.reason
    # Eight, or fewer where a busy host has spent the time of an arm.
    assert 2 <= len(found.bursts.time_ms) <= 8 and len(set(found.bursts.calls)) == 1


@pytest.mark.parametrize("fault", ["wrong", "raises", "writes", "settings"])
def test_what_a_call_does_only_among_others_is_seen(fault: str) -> None:
    """Two calls without a look in between are a burst, and a kernel can tell."""
    since_look = 0

    class Timer(CpuTimer):
        def sample(self, arm: str, call: Call, retry: Callable[[], Call] | None = None) -> Timed:
            nonlocal since_look
            since_look = 0
            return super().sample(arm, call, retry)

        def burst(self, calls: Sequence[Call], *how: Any) -> tuple[float, object]:
            nonlocal since_look
            since_look = 1
            return super().burst(calls, *how)

    def sprints(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        if not since_look:
            return honest(q, k, v, sm_scale=sm_scale)
        if fault == "raises":
            raise ValueError("among others")
        if fault == "writes":
            q.add_(1)
        if fault == "settings":
            torch.backends.cudnn.deterministic = True
        return torch.zeros_like(q) if fault == "wrong" else honest(q, k, v, sm_scale=sm_scale)

    [found] = observations(sprints, timer=Timer())
    assert found.status is (Status.CRASHED if fault == "raises" else Status.WRONG), found.reason
    assert not found.samples.time_ms and not found.bursts.time_ms


@pytest.mark.parametrize(("buffers", "from_call", "rounds"), [(1, 1, 100), (2, 6, 100), (16, 4, 3)])
def test_an_output_lives_on(buffers: int, from_call: int, rounds: int) -> None:
    """Also in a ring of buffers that begins after the calls that are always checked."""
    ring = [torch.empty(6, 2, 32, dtype=torch.float16) for _ in range(buffers)]
    calls = 0

    def in_a_ring(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        nonlocal calls
        calls += 1
        out = honest(q, k, v, sm_scale=sm_scale)
        return ring[calls % buffers].copy_(out) if calls >= from_call else out

    many = FixedCount(kind="fixed_count", rounds=rounds)  # some of them are looked at, at random
    [observation] = observations(
        in_a_ring, case=CASE.model_copy(update={"timing": Timing(stopping=many)})
    )
    assert observation.status is Status.WRONG
    assert observation.reason == "a later call overwrote what an earlier one had returned"


def test_an_output_lives_on_to_the_end() -> None:
    """A ring of so many buffers that the last one looked at is never come round to."""
    calls = 0
    ring: list[tuple[Tensor, Tensor]] = []  # what was returned at first, and its values

    def in_a_ring(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        nonlocal calls
        calls += 1
        out = honest(q, k, v, sm_scale=sm_scale)
        if calls <= 5:
            ring.append((out, out.clone()))
        for returned, values in ring if calls > 40 else ():
            if not torch.equal(out, values):  # inputs repeat, and this result is read by no check
                returned.copy_(out)
        return out if calls <= 5 else out.clone()

    many = FixedCount(kind="fixed_count", rounds=60)
    case = CASE.model_copy(update={"timing": Timing(stopping=many)})
    [observation] = observations(in_a_ring, case=case)
    assert calls > 40
    assert observation.status is Status.WRONG
    assert observation.reason == "a later call overwrote what an earlier one had returned"


def test_a_result_may_lie_apart_in_memory() -> None:
    """A view of every other value, or of one for all: a caller would not mind."""

    def apart(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        out = honest(q, k, v, sm_scale=sm_scale)
        return torch.stack([out, out], -1)[..., 0]

    assert [one.status for one in observations(apart, honest)] == [Status.OK, Status.OK]


@pytest.mark.parametrize("right_calls", [1, 2, 12])
def test_a_kernel_that_declines_after_a_right_answer_has_failed(right_calls: int) -> None:
    """Otherwise a kernel could decline wherever it is slow, and still count as right."""
    calls = 0

    def declining(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > right_calls:
            raise Unsupported("too slow here")
        return honest(q, k, v, sm_scale=sm_scale)

    many = FixedCount(kind="fixed_count", rounds=20)
    case = CASE.model_copy(update={"timing": Timing(stopping=many)})
    [late] = observations(declining, case=case)
    assert late.status is Status.CRASHED
    assert late.reason == "it declined the case after a right answer: too slow here"


def test_a_kernel_that_declines_at_once_is_no_failure() -> None:
    def declining(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        raise Unsupported("never")

    [declined] = observations(declining)
    assert (declined.status, declined.reason) == (Status.UNSUPPORTED, "never")
