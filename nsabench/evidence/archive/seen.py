"""What was seen in the tables of an archive, so that each is hashed and read once on a machine.

It is kept by what tells an object from any other that may take its place: the address, and what the
store says of its content (in a folder inode, size and times). No trust is kept, and no signature.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from nsabench import limits, reading
from nsabench.assessment.tables import BURSTS, RECORDS, SAMPLES, batches, check_table, misfit
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest.summary import Stated, stated
from nsabench.files import user_cache, whole
from nsabench.reading import OutOfBounds, parse_json

MOST = 100_000  # objects that are remembered


class Table(BaseModel):
    """A table: its hash, and what a summary of it has to agree with."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    rows: int
    run_ids: list[str]
    stated: list[Stated] | None  # by its records; of timings nothing

    @property
    def gpus(self) -> list[str]:
        """That its records name."""
        return sorted({record.gpu_name for record in self.stated or () if record.gpu_name})


class _Kept(BaseModel):
    tables: dict[str, Table] = {}


def sha256(path: Path) -> str:
    """The hash of a table. Raises `VerificationFailed` when it cannot be read or is too large."""
    try:
        with reading.opened(path, limits.TABLE) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OutOfBounds as error:
        raise VerificationFailed(f"{path.name} {error}") from None
    except OSError as error:
        raise VerificationFailed(f"{path.name} cannot be read: {error.strerror}") from None


def look(path: Path, digest: str, most: int) -> Table:
    """Look at a table of that sha256. Raises `VerificationFailed` when it is none, or has more than
    `most` rows."""
    try:
        rows = check_table(path, most)
        schema = pq.read_schema(path)
        is_records = "gpu_name" in schema.names
        timings = BURSTS if "calls" in schema.names else SAMPLES
        wrong = misfit(schema, RECORDS if is_records else timings, ["run_id"])
        if wrong:
            raise OutOfBounds(wrong)
        return Table(
            sha256=digest,
            rows=rows,
            run_ids=sorted(_texts(path, "run_id")),
            stated=sorted(stated(path), key=str) if is_records else None,
        )
    except OutOfBounds as error:
        raise VerificationFailed(f"{path.name} {error}") from None
    except (OSError, KeyError, pa.ArrowException) as error:
        first = str(error).splitlines()[0]
        raise VerificationFailed(f"{path.name} cannot be read: {first}") from None


def _texts(path: Path, column: str) -> set[str]:
    """The texts of a column, but for empty ones."""
    texts: set[str] = set()
    for part in batches(path, [column]):
        values = part[column]
        if not pa.types.is_dictionary(values.type):
            raise OutOfBounds(f"has no texts in column {column}")
        all_texts = values.dictionary.to_pylist()
        texts.update(all_texts[i] for i in pc.unique(values.indices).to_pylist() if i is not None)
        if len(texts) > limits.FAULTS:
            raise OutOfBounds(f"has more than {limits.FAULTS} different texts in column {column}")
    return texts - {""}


class Seen:
    """The tables that were looked at on this machine; what cannot be kept is looked at again."""

    def __init__(self) -> None:
        self._path = user_cache() / "archived-tables.json"
        self._tables: dict[str, Table] = {}
        self._new = False
        with suppress(OSError, OutOfBounds):
            most = 64 * limits.MIB
            self._tables = parse_json(reading.read(self._path, most), most, _Kept).tables

    def get(self, key: str) -> Table | None:
        return self._tables.get(key)

    def put(self, key: str, table: Table) -> None:
        self._tables[key] = table
        self._new = True

    def keep(self) -> None:
        """Write it, if there is anything new."""
        if not self._new:
            return
        kept = dict(list(self._tables.items())[-MOST:])
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            whole(self._path, _Kept(tables=kept).model_dump_json().encode())


def key(location: str, name: str, stamp: str) -> str:
    """What tells an object from every other that was ever at its address."""
    return hashlib.sha256("\n".join((location, name, stamp)).encode()).hexdigest()
