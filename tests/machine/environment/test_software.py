"""The installation, and the worker's account of it."""

from __future__ import annotations

import hashlib
import sys
from importlib import metadata
from pathlib import Path

import pytest

from nsabench.machine.environment import software
from nsabench.machine.environment.model import NO_WORKER
from nsabench.machine.environment.pairs import PAIRS, numbers, pair_of
from nsabench.model.description import Described

TOLD: dict[str, str | None] = {
    "torch": "2.11.0+cu130",
    "torch.cuda": "13.0",
    "torch.architectures": "sm_80 sm_90 compute_90",
    "torch.cuda_usable": "true",
    "triton": "3.6.0",
    "numpy": "2.3.5",
    "setting.matmul_tf32": "False",
    "setting.cudnn_tf32": None,
    "setting.cudnn_tf32.why": "AttributeError",
    "cudnn": "9.13.0",
    "nccl": None,
    "nccl.why": "libnccl is not loaded",
}


def test_what_the_worker_told() -> None:
    absent: dict[str, str] = {}
    read = software.read_software(Described(software=TOLD, device={}), {}, absent)
    assert read.torch is not None
    assert (read.torch.version, read.torch.cuda) == ("2.11.0+cu130", "13.0")
    assert read.torch.architectures == ["sm_80", "sm_90", "compute_90"]
    assert read.torch.cuda_usable is True
    assert read.torch.settings == {"matmul_tf32": "False"}
    assert read.libraries == {"cudnn": "9.13.0"}
    assert absent["software.libraries.nccl"] == "libnccl is not loaded"
    assert absent["software.libraries.ptxas"] == "the worker did not say"


def test_without_a_worker_the_distributions_still_speak() -> None:
    absent: dict[str, str] = {}
    read = software.read_software(None, {}, absent)
    assert read.torch is None
    assert absent["software.torch"] == NO_WORKER
    assert read.distributions["pydantic"] == metadata.version("pydantic")
    assert "typing-extensions" in read.distributions  # by its normalised name


def test_remains_of_a_broken_uninstall_are_no_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "left_over-1.0.dist-info").mkdir()
    whole = tmp_path / "No.Record_Here-2.0.dist-info"
    whole.mkdir()
    (whole / "METADATA").write_text("Metadata-Version: 2.1\nName: No.Record_Here\nVersion: 2.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert software.read_software(None, {}, {}).distributions == {"no-record-here": "2.0"}


@pytest.mark.parametrize(
    ("requirements", "version"),
    [
        (["filelock", 'triton==3.6.0; platform_system == "Linux"'], "3.6.0"),
        (["triton (==2.2.0) ; platform_system == 'Linux'"], "2.2.0"),
        (["pytorch-triton==3.3.0+git96316ce5"], "3.3.0+git96316ce5"),
        (["triton-windows==3.1.0", "tritonclient==2.0"], None),
        (None, None),
    ],
)
def test_the_triton_that_torch_pins(
    monkeypatch: pytest.MonkeyPatch, requirements: list[str] | None, version: str | None
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: requirements)
    assert software.triton_pinned_by_torch() == version


def test_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("torch==2.11.0\n")
    absent: dict[str, str] = {}
    read = software.read_software(None, {software.LOCK_VARIABLE: str(lock)}, absent)
    assert read.lock_sha256 == hashlib.sha256(lock.read_bytes()).hexdigest()
    assert "software.lock" not in absent
    software.read_software(None, {software.LOCK_VARIABLE: "/missing"}, absent)
    assert absent["software.lock"] == "the lock cannot be read: No such file or directory"


def test_pairs_ascend_and_are_found_by_minor_version() -> None:
    assert [numbers(p.torch) for p in PAIRS] == sorted(numbers(p.torch) for p in PAIRS)
    pair = pair_of("2.13.1+cu130")
    assert pair is not None and (pair.triton, pair.cuda) == ("3.7.1", "13.0")
    assert pair_of("1.13.1") is None
    assert pair_of("") is None
    assert numbers("2.13.0a0+git1") == (2, 13, 0)
