"""Hashes serial numbers and names of machines, unless the user wants them plain.

A plain hash of such a short name could be found by trying, so the hash has a salt. By default it is
random for this process and never stored: it tells devices of one run apart and links no runs. With
the salt in NSABENCH_ID_SALT_FILE, its owner can recognise machines across runs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from secrets import token_bytes

from nsabench.errors import UsageError
from nsabench.machine.environment.model import Identifiers

SALT_VARIABLE = "NSABENCH_ID_SALT_FILE"
_SALT_BYTES = 16
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}[0-9a-fA-F/-]*")
_LOGIN_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")


@cache
def _salt_of_this_process() -> bytes:
    return token_bytes(32)


def read_salt(path: Path) -> bytes:
    """Raises `UsageError` if the file cannot be read or is too short."""
    try:
        salt = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"{SALT_VARIABLE} names a file that cannot be read: {error.strerror}",
            f"unset it, or create it: head -c 32 /dev/urandom > {path}",
        ) from None
    if len(salt) < _SALT_BYTES:
        raise UsageError(
            f"the salt in {SALT_VARIABLE} has {len(salt)} bytes, fewer than {_SALT_BYTES}",
            f"make a new one: head -c 32 /dev/urandom > {path}",
        )
    return salt


class Redactor:
    """Replaces what identifies a machine or its user."""

    def __init__(self, *, plain: bool, salt: bytes | None = None) -> None:
        self._plain = plain
        self._salt = salt or _salt_of_this_process()
        self.kind: Identifiers = "plain" if plain else "shared" if salt else "run"
        # A host called "gpu" must not make every "gpu" in a path unreadable.
        hostname = socket.gethostname()
        self._hostname = hostname if len(hostname) > 4 else ""
        home = os.path.expanduser("~")  # noqa: PTH111 (Path.home raises where there is none)
        self._home = home if home not in ("", "/", "~") else ""

    @classmethod
    def from_variables(cls, variables: Mapping[str, str], *, plain: bool) -> Redactor:
        """Raises `UsageError` if the variables name a bad salt file."""
        named = variables.get(SALT_VARIABLE)
        return cls(plain=plain, salt=read_salt(Path(named)) if named else None)

    def identifier(self, kind: str, value: str | None) -> str | None:
        """Return `value`, or 128 bits of its HMAC. kind: makes equal values of two kinds differ."""
        if not value or self._plain:
            return value or None
        message = f"{kind}\0{value.strip().lower()}".encode()
        return "hmac:" + hmac.new(self._salt, message, hashlib.sha256).hexdigest()[:32]

    def text(self, value: str) -> str:
        """Return `value` without logins and, unless plain, home folder, host and devices."""
        value = _LOGIN_IN_URL.sub("redacted", value)
        if self._plain:
            return value
        value = _UUID.sub(lambda match: self.identifier("uuid", match[0]) or "", value)
        if self._home:
            value = re.sub(re.escape(self._home) + r"(?=$|[/:,\s])", "~", value)
        if self._hostname:
            hidden = self.identifier("hostname", self._hostname) or ""
            value = re.sub(rf"(?<!\w){re.escape(self._hostname)}(?!\w)", hidden, value)
        return value
