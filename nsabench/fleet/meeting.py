"""Shards that are measured at once on one host, told when each is alone and when all are busy."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread

from nsabench.execution.neighbours import (
    BEGIN,
    GO_ON,
    LONGEST,
    MEASURED,
    PATIENCE_S,
    VARIABLE,
    WANTED,
)


class _Left(Exception):
    """A shard ended."""


class Meeting:
    """A line to each of the shards; show is told the shard and the sentence where one is not waited
    for any longer.

    Each comes to two passes. In the first one after another measures, and the rest wait. In the
    second all measure, and none goes on before all have. left: the first shard that ended before
    that, or was waited for longer than `patience_s`; then the lines to all are cut, and the others
    end, too: what one device does without its neighbours is not what is asked for.
    """

    def __init__(
        self,
        names: Sequence[str],
        show: Callable[[str, str], None],
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.left = ""
        self._show = show
        self._patience_s = patience_s
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in names]
        self._lines = {name: ours for name, (ours, _) in zip(names, pairs, strict=True)}
        self._theirs = {name: theirs for name, (_, theirs) in zip(names, pairs, strict=True)}
        for line in self._lines.values():
            line.settimeout(patience_s)
        self._thread = Thread(target=self._lead, daemon=True)

    def descriptors(self, name: str) -> list[int]:
        """What the process of this shard is to inherit: nothing, if it has no line."""
        return [self._theirs[name].fileno()] if name in self._theirs else []

    def variables(self, name: str, beside: int) -> dict[str, str]:
        """What its environment is to hold. beside: shards of the plan that are not this one."""
        return {VARIABLE: f"{''.join(map(str, self.descriptors(name)))}:{beside}"}

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
        for name in self._lines:
            if name in wanted:
                self._tell(name, BEGIN)
                self._expect(name, MEASURED)
        # Not before: who goes on begins a worker, and compiles where it was resumed.
        for name in self._lines:
            self._tell(name, GO_ON)

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
            try:
                message = self._lines[name].recv(LONGEST)
            except TimeoutError:
                self._show(
                    name,
                    f"the other shards wait no longer for this one, which said nothing for "
                    f"{self._patience_s / 60:.3g} min of what the devices do to each other: all of "
                    f"them end; interrupt it if it does not, and give the same command again",
                )
                message = b""
            if message:
                return message
        raise _Left(name)

    def _tell(self, name: str, message: bytes) -> None:
        try:
            self._lines[name].send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise _Left(name) from None
