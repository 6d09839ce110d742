"""Hashes which machine this is, without revealing it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import pynvml

from nsabench.machine.environment.nvml import Device, attempt
from nsabench.model.description import Described


def machine_of(run_id: str, described: Described, root: Path = Path("/")) -> str:
    """Hash the run id, the host's machine id and the device's UUID; return "" without both.

    The ids are long and random, so the hash does not reveal them, nor link two runs.
    """
    parts = [part for part in (_machine_id(root), _device_uuid(described)) if part]
    if not parts:
        return ""
    return hashlib.sha256("\0".join(["nsabench machine", run_id, *parts]).encode()).hexdigest()


def _machine_id(root: Path) -> str:
    """Return the host's machine id; "" without one, as in images."""
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):  # some have only the second
        with suppress(OSError, UnicodeDecodeError):
            if number := (root / name).read_text().strip():
                return number
    return ""


def _device_uuid(described: Described) -> str:
    index = described.device.nvml_index
    for device in Device.all() if index is not None else ():
        if device.index() == index:
            return attempt(pynvml.nvmlDeviceGetUUID, device.handle) or ""
    return ""
