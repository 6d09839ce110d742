"""The signed summary must agree with the files, even if its signer lies."""

from nsabench.evidence.manifest import seal, verify
from tests.evidence.manifest.test_tamper import resign
from tests.runs import Made, make_run


def test_an_uncaught_control_that_is_denied(tmp_path, signer):
    run = make_run(tmp_path / "run", Made(control_caught=False), signer=signer)
    seal(run, signer)
    assert verify(run).broken is None
    resign(run, lambda s: s["predicate"].update(controls_caught=True), signer)
    assert "controls_caught is True and should be False" in (verify(run).broken or "")


def test_an_environment_of_another_gpu_than_the_records(tmp_path, signer):
    run = make_run(tmp_path / "run", Made(environment_gpu="NVIDIA B300"), signer=signer)
    seal(run, signer)
    broken = verify(run).broken or ""
    assert broken.startswith("origin: environment.json") and "NVIDIA B300" in broken


def test_a_slice_of_a_device_is_named_after_it(tmp_path, signer):
    made = Made(gpu="NVIDIA H200 MIG 1g.18gb", environment_gpu="NVIDIA H200")
    run = make_run(tmp_path / "run", made, signer=signer)
    seal(run, signer)
    assert verify(run).broken is None
