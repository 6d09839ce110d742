"""Thrift's compact protocol, as far as the footer and the page headers of Parquet need it.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import struct
from typing import Any

from nsabench.bounds.content import OutOfBounds

_DEPTH = 16
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_STOP = 0


def read_struct(data: memoryview, at: int = 0) -> tuple[dict[int, Any], int]:
    """The struct that begins `at`, its fields by number, and where it ends.

    Raises `OutOfBounds` when there is none.
    """
    reader = _Reader(data, at)
    try:
        return reader.struct(0), reader.at
    except (IndexError, struct.error):
        raise OutOfBounds("is cut off") from None


class _Reader:
    def __init__(self, data: memoryview, at: int) -> None:
        self.data = data
        self.at = at

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > _DEPTH:
            raise OutOfBounds("is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (header := self._byte()) != _STOP:
            step, kind = header >> 4, header & 15
            number = number + step if step else self._integer()
            if kind in (_TRUE, _FALSE):
                fields[number] = kind == _TRUE
            else:
                fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _BINARY:
            return self._bytes(self._natural())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._items(depth)
        if kind in (_BYTE, _TRUE, _FALSE):
            return self._byte()
        if kind == _DOUBLE:
            return struct.unpack("<d", self._bytes(8))[0]
        if kind == _MAP:
            count = self._natural()
            kinds = self._byte() if count else 0
            self._enough(count)
            return [
                (self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1))
                for _ in range(count)
            ]
        raise OutOfBounds(f"has a field of the unknown kind {kind}")

    def _items(self, depth: int) -> list[Any]:
        if depth > _DEPTH:
            raise OutOfBounds("is nested too deeply")
        header = self._byte()
        count, kind = header >> 4, header & 15
        if count == 15:
            count = self._natural()
        self._enough(count)
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _enough(self, count: int) -> None:
        # Each item takes a byte at least, so a count cannot ask for more than there is.
        if count > len(self.data) - self.at:
            raise OutOfBounds("is cut off")

    def _byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def _bytes(self, count: int) -> bytes:
        self._enough(count)
        value = bytes(self.data[self.at : self.at + count])
        self.at += count
        return value

    def _natural(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise OutOfBounds("has a number of more than 64 bits")

    def _integer(self) -> int:
        zigzag = self._natural()
        return (zigzag >> 1) ^ -(zigzag & 1)
