"""Hashes which machine this is, so that a run recognises it and others cannot find it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import pynvml

from nsabench.machine.environment.nvml import Device, attempt
from nsabench.model.description import Described


def machine_of(run_id: str, described: Described, root: Path = Path("/")) -> str:
    """Return a hash of the run, the host's machine id and the UUID of the device in use.

    Empty if there is neither. Both are long and random, so the hash does not reveal them, nor
    whether two runs were on one machine.
    """
    parts = [part for part in (_machine_id(root), _device_uuid(described)) if part]
    if not parts:
        return ""
    return hashlib.sha256("\0".join(["nsabench machine", run_id, *parts]).encode()).hexdigest()


def _machine_id(root: Path) -> str:
    """Return the host's id; "" without one. Images of containers have an empty file."""
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):  # some have only the second
        with suppress(OSError, UnicodeDecodeError):
            if found := (root / name).read_text().strip():
                return found
    return ""


def _device_uuid(described: Described) -> str:
    index = described.device.nvml_index
    for device in Device.all() if index is not None else ():
        if device.index() == index:
            return attempt(pynvml.nvmlDeviceGetUUID, device.handle) or ""
    return ""
