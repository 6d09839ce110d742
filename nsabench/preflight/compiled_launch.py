"""One row of the result: a launch, compiled for one architecture under one Triton."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa

from nsabench.assessment.parquet import replace
from nsabench.model.vocabulary import BENIGN, Status


@dataclass(frozen=True, kw_only=True)
class CompiledLaunch:
    """The numbers are those of the cubin; None if there is none."""

    triton: str
    torch: str
    architecture: str
    declared: bool
    op: str
    implementation: str
    kernel: str = ""  # empty: no launch could be recorded
    signature: str = ""
    constants: str = ""
    options: str = ""
    example: str
    cases: int
    status: str
    reason: str
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    shared_limit_bytes: int | None = None
    warps: int | None = None
    occupancy: float | None = None
    code_bytes: int | None = None
    compile_s: float | None = None
    compiler: str = ""
    schema_version: int = 1

    @property
    def failed(self) -> bool:
        """Whether it was meant to work and does not."""
        return self.declared and Status(self.status) not in BENIGN


_TYPES = {"str": pa.string(), "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64()}
_UNITS = {
    "declared": "this Triton is meant to compile for the architecture, so that a failure counts",
    "cases": "1; cases of the matrices that launch it",
    "example": "the first of those cases",
    "registers": "1; registers a thread",
    "spill_bytes": "byte; stack a thread, where spilled registers live",
    "shared_bytes": "byte; shared memory a block",
    "shared_limit_bytes": "byte; shared memory the architecture gives a block",
    "warps": "1; warps a block",
    "occupancy": "1; resident warps over those a multiprocessor can hold",
    "code_bytes": "byte; machine code of the cubin",
    "compiler": "of a kernel that Triton does not compile; such are compiled once, not per Triton",
    "compile_s": "s; wall time of compilation, short for a kernel in Triton's cache",
}


def write(compiled: list[CompiledLaunch], path: Path) -> None:
    """Write all rows as Parquet. A reader sees the whole file or none."""
    schema = pa.schema(
        [
            pa.field(
                field.name,
                _TYPES[str(field.type).split(" ")[0]],
                metadata={"meaning": _UNITS.get(field.name, "")},
            )
            for field in fields(CompiledLaunch)
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, pa.Table.from_pylist([asdict(launch) for launch in compiled], schema=schema))
