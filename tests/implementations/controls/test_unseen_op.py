"""The controls of an op that nsabench does not ship."""

from pathlib import Path

import pytest
import torch

from nsabench import ops
from nsabench.model.vocabulary import Role, Runs
from nsabench.ops import _external
from nsabench.registry import validation
from tests.checking import registered

RMSNORM = Path(__file__).parents[2] / "rmsnorm.py"


def eager(x, weight, *, eps):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(x.dtype)


def baseline(name, *devices, source="mine.py@1"):
    return registered("rmsnorm", name, eager, Role.BASELINE, devices=devices, source=source)


@pytest.fixture(autouse=True)
def _rmsnorm():
    ops.load_file(RMSNORM)
    yield
    _external.from_files.clear()


def controls(*baselines):
    import nsabench.implementations  # noqa: F401 - registers the controls

    return list(validation.controls(baselines))


def test_all_controls_without_an_op_apply():
    found = controls(baseline("eager", Runs.CUDA, Runs.CPU))
    names = {i.name for i in found}
    assert names >= {"zero_output", "patched_clocks", "hidden_in_a_thread", "stale_gradients"}
    assert len(names) == len(found) == 30
    assert {i.wraps for i in found} == {"", "eager"}
    of_streams = {"side_stream_unjoined", "default_stream"}
    assert {i.name for i in found if i.needs_order} == of_streams


def test_controls_wrap_the_first_baseline_on_most_devices():
    some = [
        baseline("interpreted", Runs.CUDA, Runs.INTERPRETER),
        baseline("first", Runs.CUDA, Runs.CPU),
        baseline("second", Runs.CUDA, Runs.CPU),
    ]
    assert validation.first_baseline(some, "rmsnorm") is some[1]
    shipped = baseline("third", Runs.CUDA, Runs.CPU, source="nsabench")
    assert validation.first_baseline([*some, shipped], "rmsnorm") is shipped
    assert all(Runs.CPU not in i.devices for i in controls(some[0]))
    assert controls(baseline("interpreted", Runs.INTERPRETER)) == []
