"""Hash the ids of a machine, and remove from texts what identifies the machine or its user."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

import pynvml

from nsabench.machine.environment.nvml import Device, attempt
from nsabench.model.description import Described


def machine_of(run_id: str, described: Described, root: Path = Path("/")) -> str:
    """Hash the run id, the host's machine id and the device's UUID; "" if both ids are unknown.

    The ids are long and random, so the hash does not reveal them. It is different in each run.
    """
    parts = [part for part in (_machine_id(root), _device_uuid(described)) if part]
    if not parts:
        return ""
    return hashlib.sha256("\0".join(["nsabench machine", run_id, *parts]).encode()).hexdigest()


def _machine_id(root: Path) -> str:
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):  # some hosts have only the second
        with suppress(OSError, UnicodeDecodeError):
            if number := (root / name).read_text().strip():
                return number
    return ""


def _device_uuid(described: Described) -> str:
    index = described.device.nvml_index
    for device in Device.list_all() if index is not None else ():
        if device.index() == index:
            return attempt(pynvml.nvmlDeviceGetUUID, device.handle) or ""
    return ""


_DEVICE_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}[0-9a-fA-F/-]*")
_LOGIN_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def redact(text: str) -> str:
    """Return `text` without logins, device UUIDs, the home folder and the host's name."""
    text = _LOGIN_IN_URL.sub("redacted", text)
    text = _DEVICE_UUID.sub(r"\1-redacted", text)
    home = os.path.expanduser("~")  # noqa: PTH111 (Path.home raises where there is none)
    if home not in ("", "/", "~"):
        text = re.sub(re.escape(home) + r"(?=$|[/:,\s])", "~", text)
    # A short host name such as "gpu" would redact too much.
    hostname = socket.gethostname()
    if len(hostname) > 4:
        text = re.sub(rf"(?<!\w){re.escape(hostname)}(?!\w)", "redacted", text)
    return text
