"""Removes what identifies the user or the machine."""

from __future__ import annotations

import os
import re
import socket

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
