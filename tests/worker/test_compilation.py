"""Calls that compile ahead never see the data that is judged."""

import pytest
import torch

from nsabench import ops
from nsabench.implementations.baselines.selection_ranges import masked_sdpa
from nsabench.model.vocabulary import Direction
from nsabench.worker.session import compile_case
from tests.checking import sets_of
from tests.worker.test_backward import item, make_case


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
