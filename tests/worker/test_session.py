"""What a worker compiles ahead and imports, and what a case leaves for the next."""

import subprocess
import sys
from io import BytesIO

import pytest
import torch

from nsabench import ops
from nsabench.channel import Channel
from nsabench.implementations.baselines.selection_ranges import masked_sdpa
from nsabench.implementations.baselines.selection_rows import gqa
from nsabench.model.vocabulary import Direction, DType, Status
from nsabench.worker.session import WorkerSession, compile_case
from tests.checking import Desk, a_case, registered, rounds, sets_of
from tests.worker.test_backward import item, make_case

SHAPES = 10  # torch compiles 8 variants of a function, and runs others uncompiled


def _session(item):
    session = WorkerSession("cpu", None, None, None, Channel(BytesIO(), b""))
    session.items = {(item.op, item.name): item}
    return session


def _case(length=8):
    shape = {"N": 4, "H": 2, "D": 16, "Dv": 16, "L": length}
    timing = rounds(2, warmup_s=0.001)
    return a_case("selection_rows", shape, dtype=DType.FLOAT32, timing=timing)


def test_the_tenth_shape_runs_compiled_too():
    compiled_calls = 0

    def backend(graph, inputs):
        def call(*tensors):
            nonlocal compiled_calls
            compiled_calls += 1
            return graph(*tensors)

        return call

    attend = torch.compile(gqa, backend=backend, dynamic=False)
    uncompiled = []

    def mine(q, k, v, *, sm_scale):
        before = compiled_calls
        out = attend(q, k, v, sm_scale)
        if compiled_calls == before:
            uncompiled.append(tuple(k.shape))
        return out

    item = registered("selection_rows", "mine", mine)
    session = _session(item)
    for number in range(SHAPES):
        case = _case(8 + number)
        desk = Desk(case)
        request = desk.request([item.name], case)
        [observation] = session.measure(request, lambda step: None, desk.deliver).observations
        assert observation.status is Status.OK, observation.reason
    assert compiled_calls > SHAPES
    assert uncompiled == []


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD, Direction.STEP])
def test_it_is_called_on_inputs_that_no_set_has(direction):
    case = make_case(rotate=3).model_copy(update={"direction": direction})
    seen = []
    steps = []

    def call(*tensors, **options):
        seen.append(tuple(t.detach().clone() for t in tensors))
        return masked_sdpa(*tensors, **options)

    compiled = compile_case(case, item(call), "cpu", steps.append, probes=True)
    assert compiled.reason == ""
    assert compiled.first_s > 0
    assert len(seen) == 1 + len(ops.probes(case)) == 1 + len(steps)
    sets = sets_of(case)
    for given in seen:
        for inputs in sets.sets:
            assert not any(
                torch.equal(mine, theirs)
                for mine, theirs in zip(given[:3], inputs.tensors.values(), strict=False)
            )


def test_each_probe_that_concerns_a_kernel_has_a_step_of_its_own():
    case = make_case()
    called = []
    steps = []

    def call(*tensors, **options):
        called.append(tensors)
        return masked_sdpa(*tensors, **options)

    probes = ops.probes(case)
    some = [name for name, probe in probes.items() if probe.case.distribution == "disjoint"]
    kernel = item(call).model_copy(update={"distributions": ("disjoint",)})
    assert compile_case(case, kernel, "cpu", steps.append, probes=True).reason == ""
    assert len(called) == 1 + len(some) < 1 + len(probes)
    assert len(steps) == len(some)


def test_what_fails_has_a_reason_and_no_time():
    def call(*_, **options):
        raise ValueError("not today")

    compiled = compile_case(make_case(), item(call), "cpu", print, probes=False)
    assert "not today" in compiled.reason
    assert compiled.first_s == 0


BEGIN = """
import gc, sys, types, weakref
import torch
torch.cuda.synchronize = lambda: None  # there is none
from nsabench.worker.guard import forget_earlier_cases, give_back

class Node: pass

def kept():
    node = Node()
    node.itself = node
    return node

forget_earlier_cases()
"""
LIBRARY = """
before = gc.get_freeze_count()
library = [kept() for _ in range(1000)]
sys.modules["library"] = types.ModuleType("library")
give_back("cuda")
forget_earlier_cases()
print(gc.get_freeze_count() - before > 900)
"""
# A kernel may keep an object, such as its last failure, that holds inputs of an earlier case.
DROPPED = """
last = kept()
left = weakref.ref(last)
give_back("cuda")
forget_earlier_cases()
print(left() is not None)
last = None
give_back("cuda")
print(left() is None)
"""
COMPILED = """
def doubled(x):
    return x * 2

compiled = torch.compile(doubled, backend="eager", dynamic=False)
compiled(torch.ones(3))
[guarded, *_] = [weakref.ref(o) for o in gc.get_objects() if type(o).__name__ == "GraphModule"]
compiled = None
gc.freeze()
forget_earlier_cases()
print(guarded() is None)
"""


def test_what_stays_is_passed_over_and_what_is_dropped_is_found():
    assert printed(BEGIN + LIBRARY + DROPPED + COMPILED) == ["True"] * 4


ASIDE = ("pyarrow", "rich", "jinja2", "cryptography")


def printed(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    )
    return done.stdout.split()


def test_a_worker_loads_nothing_of_results_and_reports():
    modules = "nsabench.worker.__main__, nsabench.worker.session"
    code = f"import sys, {modules}; print(*(m for m in {ASIDE!r} if m in sys.modules))"
    assert printed(code) == []
