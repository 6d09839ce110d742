"""Connect a worker, a checker or a preflight worker to its supervisor, without importing torch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import BinaryIO, Literal

from pydantic import Field

from nsabench.errors import NsabenchError
from nsabench.model.measurement import Message

PR_SET_PDEATHSIG = 1
GO = b"go\n"  # the supervisor's answer to a `Step` that awaits an answer


class Step(Message):
    """The process begins a step. `allowance` multiplies the time limit of the step."""

    kind: Literal["step"] = "step"
    phase: str
    implementation: str = ""
    allowance: float = Field(default=1.0, gt=0)
    awaits: bool = False  # whether the process waits for the line `GO` before the step


class Refused(Message):
    """An error that the user can correct, such as a broken kernel file. The process ends."""

    kind: Literal["refused"] = "refused"
    sentence: str
    remedy: str
    exit_code: int

    @classmethod
    def from_error(cls, error: NsabenchError) -> Refused:
        return cls(sentence=str(error), remedy=error.remedy, exit_code=error.exit_code)


class Channel:
    """Sends messages. Each message begins with a secret that foreign code does not know."""

    def __init__(self, stream: BinaryIO, nonce: bytes) -> None:
        self._stream = stream
        self._nonce = nonce

    @classmethod
    def claim_stdout(cls) -> Channel:
        """Return a channel on stdout. Its secret comes from stdin. Later prints go to stderr."""
        stream = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        return cls(stream, sys.stdin.buffer.readline().strip())

    def send(self, message: Message) -> None:
        self._stream.write(self._nonce + b" " + message.model_dump_json().encode() + b"\n")
        self._stream.flush()


def die_with(parent: int) -> None:
    """Have Linux kill this process when its parent ends, even if this process hangs in a call."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the supervisor is gone")
