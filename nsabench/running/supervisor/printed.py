"""Keep the beginning and the end of what a worker prints."""

from __future__ import annotations

import threading

HEAD_BYTES = 256 << 10
TAIL_BYTES = 64 << 10


class Printed:
    """Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._head, self._tail, self._dropped = bytearray(), bytearray(), 0

    def write(self, data: bytes) -> None:
        with self._lock:
            room = HEAD_BYTES - len(self._head)
            self._head += data[:room]
            self._tail += data[room:]
            excess = max(len(self._tail) - TAIL_BYTES, 0)
            del self._tail[:excess]
            self._dropped += excess

    def text(self) -> str:
        with self._lock:
            middle = f"\n[... {self._dropped} bytes left out ...]\n" if self._dropped else ""
            raw = bytes(self._head) + middle.encode() + bytes(self._tail)
        return raw.decode("utf-8", "replace")
