"""What a worker prints, in bounded memory."""

from __future__ import annotations

import threading
from collections import deque

LOG_HEAD_BYTES = 256 << 10
LOG_TAIL_BYTES = 64 << 10


class Log:
    """What a worker prints, bounded: its beginning and its end are kept, the middle is counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._head = bytearray()
            self._tail: deque[bytes] = deque()
            self._tail_bytes = self._dropped = 0

    def write(self, data: bytes) -> None:
        with self._lock:
            room = LOG_HEAD_BYTES - len(self._head)
            self._head += data[:room]
            rest = data[room:] if room < len(data) else b""
            if rest:
                self._tail.append(rest)
                self._tail_bytes += len(rest)
            while self._tail and self._tail_bytes - len(self._tail[0]) >= LOG_TAIL_BYTES:
                gone = self._tail.popleft()
                self._tail_bytes -= len(gone)
                self._dropped += len(gone)

    def text(self) -> str:
        with self._lock:
            middle = f"\n[... {self._dropped} bytes left out ...]\n" if self._dropped else ""
            raw = bytes(self._head) + middle.encode() + b"".join(self._tail)
        return raw.decode("utf-8", "replace")
