"""The attacks of `tests/attacks` that run on a CUDA device: each ends as its mark says."""

import pytest

from tests.attacks.test_attacks import ATTACKS, assert_no_gain, measured, planned

pytestmark = pytest.mark.gpu

TIMEOUT_S = 60.0  # for a worker that makes a context and compiles kernels
OF_CUDA = [one for one in ATTACKS if one.device != "cpu"]


@pytest.mark.parametrize("attack", OF_CUDA, ids=lambda one: f"{one.family}-{one.name}")
def test_it_gains_nothing(tmp_path, monkeypatch, attack):
    folder = tmp_path / "run"
    monkeypatch.setenv("NSABENCH_TEST_RUN", str(folder))
    plan = planned(attack.family, (attack.name,), device="cuda", timeout_s=TIMEOUT_S)
    assert_no_gain(measured(plan, folder), attack)
