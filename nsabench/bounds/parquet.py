"""Parquet within bounds: what a table unpacks to is known before any of it is unpacked.

Its footer and the header of every page say how much they will take. The footer alone may lie: a
reader makes room for what the headers of pages say, and a page of 2 GB of zeros takes 70 KB. Flat
tables only, in the encodings that our writer uses: others spell out a long text at every row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nsabench.bounds import limits
from nsabench.bounds.content import OutOfBounds, opened, size
from nsabench.bounds.thrift import read_struct

MAGIC = b"PAR1"
BATCH = 1 << 16  # rows that are looked at together
# PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY, BYTE_STREAM_SPLIT
_ENCODINGS = frozenset({0, 2, 3, 8, 9})
_REFERRING = frozenset({2, 8})  # to a dictionary, of data
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
# BOOLEAN, INT32, INT64, FLOAT, DOUBLE, BYTE_ARRAY
_KINDS = frozenset({0, 1, 2, 4, 5, 6})
_TEXT = 6
_TEXTS = (pa.string(), pa.binary())
_REPEATED = 2
_USUAL_HEADER = 512  # bytes of a page header
_HEADER = 64 << 10  # that one may take, with statistics of long texts


@dataclass(frozen=True)
class Layout:
    """What the footer of a table says of it, and the headers of its pages bear out."""

    rows: int
    columns: tuple[str, ...]


def layout(file: BinaryIO, rows: int) -> Layout:
    """Walk over the footer and all page headers. Raises `OutOfBounds` when the table has more than
    `rows` rows, would unpack to too much, or is none of ours."""
    footer, end = _footer(file)
    try:
        return _layout(file, footer, end, rows)
    except OutOfBounds:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise OutOfBounds("has a footer that is not as it should be") from None


def check(path: Path, rows: int) -> Layout:
    """The layout of a file. Raises as `layout` does, and `OSError`."""
    with opened(path) as file:
        found = layout(file, rows)
    try:
        fields = list(schema(path))
    except (OSError, pa.ArrowException) as error:
        raise OutOfBounds(f"cannot be read: {str(error).splitlines()[0]}") from None
    for field in fields:
        # Arrow takes its own word for a type, and some spell out a long text at every row.
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not (pa.types.is_primitive(kind) or pa.types.is_null(kind) or kind in _TEXTS):
            raise OutOfBounds(f"has a column of type {kind}")
    return found


def schema(path: Path) -> pa.Schema:
    """The columns of a table, once `check` has passed it."""
    with pq.ParquetFile(path) as file:
        return file.schema_arrow


def batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """A table part by part, once `check` has passed it. A text is held once a part, however many
    rows have it: columns of texts are dictionaries."""
    texts = [field.name for field in schema(path) if field.type in _TEXTS]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        for part in file.iter_batches(BATCH, columns=columns, use_threads=False):
            used = [_used(column) for column in part.columns]
            yield pa.RecordBatch.from_arrays(used, schema=part.schema)


def _used(column: pa.Array) -> pa.Array:
    """A part of a column with no more texts than rows: a file may bring millions that none has,
    with each group of rows."""
    if not pa.types.is_dictionary(column.type) or len(column.dictionary) <= len(column):
        return column
    places = pc.unique(column.indices.drop_null())
    return pa.DictionaryArray.from_arrays(
        pc.index_in(column.indices, places), column.dictionary.take(places)
    )


def table(path: Path, rows: int, columns: Sequence[str] | None = None) -> pa.Table:
    """A table, or some of its columns; columns of texts are dictionaries.

    Raises `OutOfBounds`, `OSError` and `pa.ArrowException`.
    """
    check(path, rows)
    texts = [field.name for field in schema(path) if field.type in _TEXTS]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        return file.read(columns=columns, use_threads=False)


def rows_of(batch: pa.RecordBatch | pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a part by column; rows with the same text share it."""
    columns = [values(column) for column in batch.columns]
    for row in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """What a column holds, row by row; rows with the same text share it."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in values(chunk)]
    if not pa.types.is_dictionary(column.type):
        plain: list[Any] = column.to_pylist()
        return plain
    column = _used(column)
    texts = column.dictionary.to_pylist()
    return [None if i is None else texts[i] for i in column.indices.to_pylist()]


def _footer(file: BinaryIO) -> tuple[dict[int, Any], int]:
    """The footer, and where the pages end."""
    whole = os.fstat(file.fileno()).st_size
    if whole > limits.TABLE:
        raise OutOfBounds(f"has more than {size(limits.TABLE)}")
    last = _at(file, max(whole - 8, 0), 8)
    if whole < 12 or last[4:] != MAGIC or _at(file, 0, 4) != MAGIC:
        raise OutOfBounds("is no Parquet file")
    length = int.from_bytes(last[:4], "little")
    if length > min(limits.FOOTER, whole - 12):
        raise OutOfBounds(f"has a footer of {length} bytes")
    begins = whole - 8 - length
    fields, _ = read_struct(memoryview(_at(file, begins, length)))
    return fields, begins


def _layout(file: BinaryIO, footer: dict[int, Any], end: int, rows: int) -> Layout:
    root, *elements = footer[2]
    names = tuple(element[4].decode() for element in elements)
    if len(elements) > limits.COLUMNS:
        raise OutOfBounds(f"has more than {limits.COLUMNS} columns")
    if root.get(5) != len(elements) or any(
        element.get(5) or element.get(3) == _REPEATED or 1 not in element for element in elements
    ):
        raise OutOfBounds("has columns within columns")
    if any(element[1] not in _KINDS for element in elements):
        raise OutOfBounds("has a column of a kind that no run has")
    if not 0 <= footer[3] <= rows:
        raise OutOfBounds(f"has {footer[3]} rows, more than {rows}")
    walk = _Pages(file, end)
    there = 0
    for group in footer[4]:
        there += group[3]
        if group[3] < 0 or there > rows or len(group[1]) != len(elements):
            raise OutOfBounds("has a footer that is not as it should be")
        at_once = texts = 0
        if not group[3]:
            continue  # of which nothing is read; a writer may leave a dictionary there
        for name, element, chunk in zip(names, elements, group[1], strict=True):
            if 1 in chunk or 8 in chunk or 9 in chunk:
                raise OutOfBounds("is encrypted, or has parts in other files")
            if b".".join(chunk[3][3]).decode() != name:
                raise OutOfBounds("has a column that it does not name")
            if chunk[3][5] != group[3]:
                raise OutOfBounds("has a column with another number of rows")
            largest, kept = walk.sizes(chunk[3])
            at_once += largest
            texts += kept if element[1] == _TEXT else 0
        if at_once > limits.PAGES_AT_ONCE:
            raise OutOfBounds(f"has to be unpacked by more than {size(limits.PAGES_AT_ONCE)}")
        if texts > limits.TEXTS:
            raise OutOfBounds(f"has a group of rows with more than {size(limits.TEXTS)} of texts")
    if there != footer[3]:
        raise OutOfBounds("has another number of rows than it says")
    return Layout(there, names)


class _Pages:
    """The pages that were walked over, of all columns together."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self.file = file
        self.end = end
        self.count = self.unpacked = 0

    def sizes(self, column: dict[int, Any]) -> tuple[int, int]:
        """Bytes of a column, unpacked: of its largest page and its dictionary, which are there at
        once; and of all of it that spells out values, which of texts is kept."""
        at, length = column[9], column[7]
        if 0 < column.get(11, 0) < at:
            at = column[11]
        stop = at + length
        if at < len(MAGIC) or length < 0 or stop > self.end:
            raise OutOfBounds("has a column outside of itself")
        page = dictionary = spelt = 0
        while at < stop:
            header, began = self._header(at, stop - at)
            kind, unpacked, packed = header[1], header[2], header[3]
            self._take(unpacked)
            if packed < 0 or at + began + packed > stop:
                raise OutOfBounds("has a page outside of its column")
            encoding = _encoding(kind, header, unpacked)
            if kind == _DICTIONARY:
                dictionary = max(dictionary, unpacked)
            else:
                page = max(page, unpacked)
            if kind == _DICTIONARY or encoding not in _REFERRING:
                spelt += unpacked
            at += began + packed
        return page + dictionary, spelt

    def _header(self, at: int, most: int) -> tuple[dict[int, Any], int]:
        try:
            return read_struct(memoryview(_at(self.file, at, min(_USUAL_HEADER, most))))
        except OutOfBounds:
            return read_struct(memoryview(_at(self.file, at, min(_HEADER, most))))

    def _take(self, unpacked: int) -> None:
        self.count += 1
        self.unpacked += unpacked
        if not 0 <= unpacked <= limits.PAGE:
            raise OutOfBounds(f"has a page that unpacks to more than {size(limits.PAGE)}")
        if self.count > limits.PAGES:
            raise OutOfBounds(f"has more than {limits.PAGES} pages")
        if self.unpacked > limits.UNPACKED:
            raise OutOfBounds(f"unpacks to more than {size(limits.UNPACKED)}")


def _encoding(kind: int, header: dict[int, Any], unpacked: int) -> int:
    """How the values of a page are written; refused, unless it is as runs are."""
    encoding: int
    if kind == _DICTIONARY:
        # A flag takes a bit, and is in no dictionary; everything else takes 4 bytes at least.
        if not 0 <= header[7][1] <= unpacked:
            raise OutOfBounds("has a dictionary of more values than it has bytes")
        encoding = header[7][2]
    elif kind == _DATA:
        encoding = header[5][2]
    elif kind == _DATA_V2:
        encoding = header[8][4]
    else:
        raise OutOfBounds("has a page of an unknown kind")
    if encoding not in _ENCODINGS:
        raise OutOfBounds("has a column in an encoding that no run is written in")
    return encoding


def _at(file: BinaryIO, offset: int, count: int) -> bytes:
    file.seek(offset)
    return file.read(count)
