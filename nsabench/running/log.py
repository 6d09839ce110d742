"""Read and write `log.jsonl`: one JSON object a line, synced before the next step.

Each line holds the hash of the line before it, and is signed when it is written. So only the signer
of the run can add, change or move a line. Others can cut off lines at the end.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from nsabench import limits, reading
from nsabench.errors import UsageError, VerificationFailed
from nsabench.model.log import LINE, Entry, Log, LogLine, LogSigner, WriterSession
from nsabench.signing import Signer
from nsabench.signing.keys import keyid_of, public_der, public_key_of_der

_REMEDY = "give the folder that nsabench made."
# Signed bytes begin with this text, so that no other signature passes for the seal of a line.
_SEALED = b"nsabench log line v3\n"
_SEAL = re.compile(rb',"seal":"([A-Za-z0-9+/]{86}==)"\}')
_SEAL_BYTES = 99


@dataclass(frozen=True)
class LogOrigin:
    """The signer of a log. `end` is the `digest` of the last line."""

    keyid: str
    ephemeral: bool
    sessions: int
    lines: int
    end: str

    def __str__(self) -> str:
        sessions = f"{self.sessions} session{'s'[: self.sessions != 1]}"
        return f"{self.lines} lines of {sessions}, signed with the key {self.keyid}"


class LogFile:
    """A log open for appending. `origin` is its signer, `end` the digest of its last line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A link could lead out of the run.
        if path.is_symlink() or (path.exists() and not path.is_file()):
            what = "a link" if path.is_symlink() else "a pipe or a device"
            raise UsageError(f"{path} is {what} and not a file", _REMEDY)
        self._file = path.open("ab")
        self._signer: Signer | None = None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.log = Log()
            self.origin, self._size, self.end = _examine(path, self.log.add)
        except BlockingIOError:
            self._file.close()
            raise UsageError(
                f"{path.parent} is being written by another nsabench",
                "wait for it, or give --out another folder.",
            ) from None
        except (UsageError, VerificationFailed):
            self._file.close()
            raise
        self._file.truncate(self._size)  # drops a last line that is incomplete

    def sign_as(self, signer: Signer) -> None:
        self._signer = signer

    def append(self, *entries: Entry) -> None:
        """Write and sync entries. Raises `VerificationFailed` after a write by something else."""
        assert self._signer is not None
        if os.fstat(self._file.fileno()).st_size != self._size:
            raise VerificationFailed(
                f"something else wrote to {self.path}", "find out what it was, and start a new run."
            )
        for entry in entries:
            content = sign_line(entry, self.end, self._signer)
            self._file.write(content + b"\n")
            self.end = digest(content)
            self._size += len(content) + 1
        self._file.flush()
        os.fsync(self._file.fileno())
        for entry in entries:
            self.log.add(entry)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Log:
    """Return a log without an unfinished last line. Raises `UsageError` for a bad line."""
    log = Log()
    for number, (_, line) in enumerate(lines(path), 1):
        try:
            log.add(line.entry)
        except ValueError as error:
            raise UsageError(f"{path}:{number}: {error}", _REMEDY) from None
    return log


def examine(path: Path) -> tuple[Log, LogOrigin]:
    """Return a log and its signer. Raises `VerificationFailed` for a bad seal or an empty log."""
    log = Log()
    origin, _, _ = _examine(path, log.add)
    if origin is None:
        raise VerificationFailed("it is empty")
    return log, origin


def _examine(path: Path, take: Callable[[Entry], None]) -> tuple[LogOrigin | None, int, str]:
    size, last = 0, b""

    def take_lines() -> Iterator[tuple[bytes, LogLine]]:
        nonlocal size, last
        for content, line in lines(path):
            yield content, line
            try:
                take(line.entry)
            except ValueError as error:
                raise VerificationFailed(f"{line.entry.kind}: {error}") from None
            size, last = size + len(content) + 1, content

    try:
        origin = find_origin(take_lines())
    except VerificationFailed as error:
        error.remedy = "find out what else wrote there, and start a new run."
        raise
    return origin, size, digest(last) if last else ""


def lines(path: Path) -> Iterator[tuple[bytes, LogLine]]:
    try:
        with reading.opened(path) as file:
            yield from _lines_of(file, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", _REMEDY) from None
    except reading.OutOfBounds as error:
        raise UsageError(f"{path} {error}", _REMEDY) from None


def _lines_of(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, LogLine]]:
    number = size = 0
    while text := file.readline(limits.LOG_LINE + 1):
        number, size = number + 1, size + len(text)
        if len(text) > limits.LOG_LINE:
            raise reading.OutOfBounds(f"has a line of more than {limits.LOG_LINE} bytes")
        if size > limits.LOG:
            raise reading.OutOfBounds(f"has more than {limits.LOG} bytes")
        if number > limits.LOG_LINES:
            raise reading.OutOfBounds(f"has more than {limits.LOG_LINES} lines")
        if not text.endswith(b"\n"):
            return  # the process was killed while it wrote the line
        try:
            yield text[:-1], LINE.validate_json(text)
        except ValidationError:
            raise UsageError(
                f"{path}:{number}: not a line of a run's log",
                "the file was altered or the disk is bad: start a new run.",
            ) from None


def sign_line(entry: Entry, previous: str, signer: Signer) -> bytes:
    line = LogLine(previous=previous, entry=entry)
    if isinstance(entry, WriterSession):
        public_key = base64.b64encode(public_der(signer.key.public_key())).decode()
        line.signer = LogSigner(
            keyid=signer.keyid, public_key=public_key, ephemeral=signer.ephemeral
        )
    content = line.model_dump_json(exclude={"seal"}, exclude_none=True).encode()
    sealed = base64.b64encode(signer.key.sign(_SEALED + content))
    return content[:-1] + b',"seal":"' + sealed + b'"}'


def digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def find_origin(lines: Iterable[tuple[bytes, LogLine]]) -> LogOrigin | None:
    """Return the signer of all lines, if any. Raises `VerificationFailed` for a bad line."""
    previous, sessions, number = "", 0, 0
    signer: LogSigner | None = None
    key: Ed25519PublicKey | None = None
    for number, (content, line) in enumerate(lines, 1):
        if isinstance(line.entry, WriterSession):
            if line.signer is not None and signer not in (None, line.signer):
                raise VerificationFailed(f"line {number} is signed with another key than line 1")
            signer, sessions = line.signer, sessions + 1
            key = _find_key(signer) if signer is not None else None
        if key is None:
            raise VerificationFailed(f"line {number} does not say who measured")
        if line.previous != previous:
            raise VerificationFailed(f"line {number} does not follow the line before it")
        _check_signature(content, key, number)
        previous = digest(content)
    if signer is None:
        return None
    return LogOrigin(signer.keyid, signer.ephemeral, sessions, number, previous)


def _find_key(signer: LogSigner) -> Ed25519PublicKey:
    try:
        key = public_key_of_der(base64.b64decode(signer.public_key, validate=True))
    except (binascii.Error, ValueError) as error:
        raise VerificationFailed(f"the log names no key: {error}") from None
    if keyid_of(key) != signer.keyid:
        raise VerificationFailed("the log holds another key than it names")
    return key


def _check_signature(content: bytes, key: Ed25519PublicKey, number: int) -> None:
    seal = _SEAL.fullmatch(content, max(len(content) - _SEAL_BYTES, 0))
    try:
        if seal is None:
            raise InvalidSignature
        key.verify(
            base64.b64decode(seal[1], validate=True), _SEALED + content[: seal.start()] + b"}"
        )
    except InvalidSignature:
        raise VerificationFailed(f"line {number} is not what was signed") from None
