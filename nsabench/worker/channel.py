"""The worker's end of the pipe to its supervisor."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import BinaryIO

from nsabench.model.measurement import Message

PR_SET_PDEATHSIG = 1


class Channel:
    def __init__(self, stream: BinaryIO, nonce: bytes) -> None:
        self._stream = stream
        self._nonce = nonce

    @classmethod
    def claim_stdout(cls) -> Channel:
        """Take over the descriptor of stdout. What foreign code prints goes to stderr."""
        stream = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        return cls(stream, sys.stdin.buffer.readline().strip())

    def send(self, message: Message) -> None:
        self._stream.write(self._nonce + b" " + message.model_dump_json().encode() + b"\n")
        self._stream.flush()


def die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, even if it hangs in a call."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the supervisor is gone")
