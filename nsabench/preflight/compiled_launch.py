"""One row of the result: a launch, compiled for one architecture under one Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from nsabench.model.vocabulary import BENIGN, Status
from nsabench.preflight.messages import Kernel, Result
from nsabench.verdicts.parquet import replace


class CompiledLaunch(Kernel, Result):
    """The numbers are those of the cubin; None if there is none."""

    triton: str
    torch: str
    architecture: str
    declared: bool
    shared_limit_bytes: int | None = None
    occupancy: float | None = None
    schema_version: int = 1

    @property
    def failed(self) -> bool:
        """Whether it was meant to work and does not."""
        return self.declared and self.status not in BENIGN


_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    Status: pa.string(),
    bool: pa.bool_(),
    int: pa.int64(),
    int | None: pa.int64(),
    float | None: pa.float64(),
}
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
            pa.field(name, _TYPES[field.annotation], metadata={"meaning": _UNITS.get(name, "")})
            for name, field in CompiledLaunch.model_fields.items()
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, pa.Table.from_pylist([launch.model_dump() for launch in compiled], schema=schema))
