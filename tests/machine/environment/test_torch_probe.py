"""What a worker tells of its software and device, with the installed torch and with replaced
ones."""

import sys
from types import SimpleNamespace

import pytest

from nsabench.machine.environment import torch_probe
from nsabench.model.description import DescribedDevice
from nsabench.worker.protocol import REPLY


def test_this_installation():
    torch = pytest.importorskip("torch")
    told = torch_probe.describe("cpu")
    assert told.software.torch == torch.__version__
    assert told.device.type == "cpu"
    assert REPLY.validate_json(told.model_dump_json()) == told
    for name in ("triton", "numpy", "cudnn", "ptxas"):
        assert getattr(told.software, name) or told.absent[f"software.{name}"], name


def test_asking_for_a_device_that_is_not_there():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    told = torch_probe.describe("cuda")
    assert told.software.cuda_usable is False
    assert told.absent["software.cuda_usable"]
    assert told.device == DescribedDevice(type="cuda")


def test_nothing_installed(monkeypatch):
    for name in ("torch", "triton", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    told = torch_probe.describe("cuda")
    assert told.software.torch is None
    assert "ModuleNotFoundError" in told.absent["software.torch"]
    assert told.device == DescribedDevice(type="cuda")


@pytest.mark.parametrize("error", [OSError("libcudart.so.13: cannot open"), RuntimeError("abi")])
def test_a_torch_that_does_not_load(monkeypatch, error):
    def refuse(name):
        raise error

    monkeypatch.setattr(torch_probe, "import_module", refuse)
    told = torch_probe.describe("cpu")
    assert str(error) in told.absent["software.torch"]


class DeferredCudaCallError(Exception):
    pass


def fake_torch(**properties):
    device = SimpleNamespace(
        name="NVIDIA H200",
        major=9,
        minor=0,
        total_memory=150 << 30,
        multi_processor_count=132,
        **properties,
    )
    cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 0,
        device_count=lambda: 2,
        get_device_properties=lambda index: device,
        DeferredCudaCallError=DeferredCudaCallError,
    )
    return SimpleNamespace(cuda=cuda)


def test_a_cuda_device(h200):
    torch = fake_torch(
        L2_cache_size=60 << 20,
        pci_domain_id=0,
        pci_bus_id=0x19,
        pci_device_id=0,
    )
    h200(
        DeviceGetHandleByPciBusId={"0000:19:00.0": "handle"}.__getitem__,
        DeviceGetIndex=3,
    )
    facts = torch_probe.describe_cuda_device(torch, "cuda:1")
    assert facts["compute_capability"] == "9.0"
    assert facts["l2_bytes"] == 60 << 20
    assert facts["nvml_index"] == 3


def test_an_older_torch_names_its_device_by_uuid(h200):
    h200(DeviceGetHandleByUUID={"GPU-1234": "handle"}.__getitem__, DeviceGetIndex=2)
    facts = torch_probe.describe_cuda_device(fake_torch(uuid="1234"), "cuda")
    assert (facts["nvml_index"], facts["l2_bytes"]) == (2, None)


def test_a_deferred_failure_is_told():
    torch = fake_torch()

    def fail(index):
        raise DeferredCudaCallError("CUDA call failed lazily")

    torch.cuda.get_device_properties = fail
    with pytest.raises(RuntimeError, match="lazily"):
        torch_probe.describe_cuda_device(torch, "cuda")


def script(folder, text):
    path = folder / "ptxas"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_torch(tmp_path, monkeypatch):
    """Replace Triton by one without programs, and remove torch."""
    triton = SimpleNamespace(__file__=str(tmp_path / "triton/__init__.py"), __version__="3.6.0")
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "torch", None)
    return tmp_path


def test_a_ptxas_that_the_environment_names(no_torch, monkeypatch):
    program = script(no_torch, "echo 'Cuda compilation tools, release 12.4, V12.4.131'")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(program))
    told = torch_probe.describe("cpu")
    assert told.software.ptxas == "12.4.131"


@pytest.mark.parametrize(
    ("text", "why"), [("exit 1", "names no version"), ("exec sleep 60", "timed out")]
)
def test_a_ptxas_that_does_not_answer(no_torch, monkeypatch, text, why):
    monkeypatch.setattr(torch_probe, "_PTXAS_TIMEOUT_S", 0.2)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(script(no_torch, text)))
    told = torch_probe.describe("cpu")
    assert told.software.ptxas is None and why in told.absent["software.ptxas"]


def test_nothing_that_names_the_user(no_torch, monkeypatch):
    missing = no_torch / "ptxas"
    missing.write_text("")  # it cannot be executed
    monkeypatch.setenv("HOME", str(no_torch))
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(missing))
    why = torch_probe.describe("cpu").absent["software.ptxas"]
    assert "~/ptxas" in why and str(no_torch) not in why
