"""State that one case leaves behind for the next case in the same worker."""

import gc
from io import BytesIO

import torch

from nsabench import registry
from nsabench.channel import Channel
from nsabench.implementations.baselines.selection_rows import gqa
from nsabench.model.vocabulary import DType, Status
from nsabench.worker import guard
from nsabench.worker.inputs import InputSets
from nsabench.worker.session import WorkerSession
from tests.checking import Desk, a_case, registered, rounds

SHAPES = 10  # torch compiles 8 of one function and runs the next ones uncompiled


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


def test_cuda_is_initialised_before_an_import_could_do_it(monkeypatch):
    """Else the order that torch then gives the backends of SDPA looks like a change."""
    done = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: done.append("init"))
    found = {guard.ENVIRONMENT: {}}
    monkeypatch.setattr(guard, "settings", lambda: done.append("settings") or dict(found))
    monkeypatch.setattr(registry, "load", lambda *_, **__: done.append("import") or [])
    assert WorkerSession("cuda", None, None, None, Channel(BytesIO(), b"")).items == {}
    assert done[:3] == ["init", "settings", "import"]


def test_nothing_of_a_case_outlives_it():
    """A timer must not keep the inputs of its arms."""
    item = registered("selection_rows", "mine", _rows)
    session = _session(item)
    case = _case()
    desk = Desk(case)
    request = desk.request([item.name], case)
    [observation] = session.measure(request, lambda step: None, desk.deliver).observations
    assert observation.status is Status.OK and observation.samples.time_ms, observation.reason
    gc.collect()
    assert [one for one in gc.get_objects() if isinstance(one, InputSets)] == []


def _rows(q, k, v, *, sm_scale):
    return gqa(q, k, v, sm_scale)
