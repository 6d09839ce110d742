"""Shards that are measured at once on one host, told when each is alone and when all are busy."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

from nsabench.execution.neighbours import BEGIN, GO_ON, LONGEST, MEASURED, VARIABLE, WANTED


class _Left(Exception):
    """A shard ended."""


class Meeting:
    """A line to each of the shards.

    Each comes to two passes. In the first one after another measures, and the rest wait. In the
    second all measure, and none goes on before all have. left: the first shard that ended before
    that; then the lines to all are cut, and the others end, too: what one device does without its
    neighbours is not what is asked for.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.left = ""
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in names]
        self._lines = {name: ours for name, (ours, _) in zip(names, pairs, strict=True)}
        self._theirs = {name: theirs for name, (_, theirs) in zip(names, pairs, strict=True)}
        self._thread = Thread(target=self._lead, daemon=True)

    def descriptor(self, name: str) -> int:
        """What the process of this shard is to inherit."""
        return self._theirs[name].fileno()

    def variables(self, name: str, beside: int) -> dict[str, str]:
        """What its environment is to hold. beside: shards of the plan that are not this one."""
        return {VARIABLE: f"{self.descriptor(name)}:{beside}"}

    def begin(self) -> None:
        """Once all are started."""
        for theirs in self._theirs.values():
            theirs.close()
        self._thread.start()

    def end(self) -> None:
        """Once all have ended."""
        self._thread.join()

    def _lead(self) -> None:
        try:
            self._alone()
            self._together()
        except _Left as left:
            self.left = str(left)
        finally:
            for line in self._lines.values():
                line.close()

    def _alone(self) -> None:
        wanted = self._gathered()
        for name in self._lines.keys() - wanted:
            self._tell(name, GO_ON)
        for name in self._lines:
            if name in wanted:
                self._tell(name, BEGIN)
                self._expect(name, MEASURED)

    def _together(self) -> None:
        wanted = self._gathered()
        if wanted:
            for name in self._lines:
                self._tell(name, BEGIN)
            for name in wanted:
                self._expect(name, MEASURED)
        for name in self._lines:
            self._tell(name, GO_ON)

    def _gathered(self) -> set[str]:
        """Wait until all have come to a pass; those that have not measured it yet."""
        return {name for name in self._lines if self._hear(name) == WANTED}

    def _expect(self, name: str, message: bytes) -> None:
        if self._hear(name) != message:
            raise _Left(name)

    def _hear(self, name: str) -> bytes:
        with suppress(ConnectionResetError):
            message = self._lines[name].recv(LONGEST)
            if message:
                return message
        raise _Left(name)

    def _tell(self, name: str, message: bytes) -> None:
        try:
            self._lines[name].send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise _Left(name) from None
