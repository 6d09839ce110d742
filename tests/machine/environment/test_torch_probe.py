"""The worker's account, from the torch that is installed and from ones that are not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsabench.machine.environment import loaded, torch_probe
from nsabench.model.description import DescribedDevice
from nsabench.worker.protocol import REPLY


def test_this_installation() -> None:
    torch = pytest.importorskip("torch")
    told = torch_probe.describe("cpu")
    assert told.software.torch == torch.__version__
    assert told.software.settings["matmul_tf32"] in ("True", "False")
    assert told.device.type == "cpu"
    assert REPLY.validate_json(told.model_dump_json()) == told
    for name, value in told.software.model_dump().items():
        if value is None and not name.startswith("torch."):
            assert told.software.why(name), name


def test_ptxas_of_this_triton() -> None:
    pytest.importorskip("triton")
    version = torch_probe.describe("cpu").software.ptxas
    assert version is not None and version.count(".") == 2


def test_asking_for_a_device_that_is_not_there() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    told = torch_probe.describe("cuda")
    assert told.software.torch_cuda_usable == "false"
    assert told.software.why("torch.cuda_usable")
    assert told.device == DescribedDevice(type="cuda")


def test_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "triton", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    told = torch_probe.describe("cuda")
    assert told.software.torch is None
    assert "ModuleNotFoundError" in (told.software.why("torch") or "")
    assert told.device == DescribedDevice(type="cuda")


@pytest.mark.parametrize("error", [OSError("libcudart.so.13: cannot open"), RuntimeError("abi")])
def test_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(name: str) -> Any:
        raise error

    monkeypatch.setattr(torch_probe, "import_module", refuse)
    told = torch_probe.describe("cpu")
    assert str(error) in (told.software.why("torch") or "")


class DeferredCudaCallError(Exception):
    pass


def fake_torch(**properties: Any) -> Any:
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


def test_a_cuda_device(h200: Callable[..., None]) -> None:
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
    facts: torch_probe.DeviceFacts = {}
    torch_probe._describe_cuda_device(torch, "cuda:1", facts, {})
    assert facts["index"] == 1
    assert facts["compute_capability"] == "9.0"
    assert facts["l2_bytes"] == 60 << 20
    assert facts["shared_memory_bytes"] is None  # this torch does not say
    assert facts["nvml_index"] == 3


def test_a_torch_that_does_not_say_the_bus_id_is_no_failure() -> None:
    facts: torch_probe.DeviceFacts = {}
    torch_probe._describe_cuda_device(fake_torch(), "cuda", facts, {})
    assert (facts["index"], facts["nvml_index"]) == (0, None)


def test_a_deferred_failure_is_told() -> None:
    torch = fake_torch()

    def fail(index: int) -> Any:
        raise DeferredCudaCallError("CUDA call failed lazily")

    torch.cuda.get_device_properties = fail
    told: loaded.Software = {}
    torch_probe._describe_cuda_device(torch, "cuda", {}, told)
    assert told["torch.cuda_usable"] == "false"


def script(folder: Path, text: str) -> Path:
    path = folder / "ptxas"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Triton without programs, and no torch."""
    triton = SimpleNamespace(__file__=str(tmp_path / "triton/__init__.py"), __version__="3.6.0")
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "torch", None)
    return tmp_path


def test_a_ptxas_that_the_environment_names(
    no_torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = script(no_torch, "echo 'Cuda compilation tools, release 12.4, V12.4.131'")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(program))
    told = torch_probe.describe("cpu").software
    assert (told.ptxas, told.ptxas_blackwell) == ("12.4.131", None)
    assert told.why("ptxas_blackwell") == "this triton has none"


@pytest.mark.parametrize(
    ("text", "why"), [("exit 1", "names no version"), ("exec sleep 60", "did not answer")]
)
def test_a_ptxas_that_does_not_answer(
    no_torch: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    monkeypatch.setattr(loaded, "_PTXAS_TIMEOUT_S", 0.2)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(script(no_torch, text)))
    told = torch_probe.describe("cpu").software
    assert told.ptxas is None and why in (told.why("ptxas") or "")


def test_nothing_that_names_the_user(no_torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = no_torch / "ptxas"
    missing.write_text("")  # it cannot be executed
    monkeypatch.setenv("HOME", str(no_torch))
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(missing))
    why = torch_probe.describe("cpu").software.why("ptxas") or ""
    assert "~/ptxas" in why and str(no_torch) not in why
