"""The columns of records.parquet and samples.parquet. Columns are only ever added.

Shape columns (N, H, D, Dv, L, ...) are int64 and nullable, one for every size of every op.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from nsabench import ops
from nsabench.errors import UsageError

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType
    unit: str
    meaning: str


# Those of the ops that ship; an op from outside adds its own to the table of its run.
SIZES = {size for name in ops.shipped() for size in ops.get(name).shape_model.model_fields}


def _shape_columns(sizes: Iterable[str] = SIZES) -> list[Column]:
    return [Column(s, pa.int64(), "1", f"size {s} of the op's shape") for s in sorted(sizes)]


_SPEEDUP = (
    "median of the best baseline / median of the candidate; where the baselines are over 3 % "
    "faster apart from the candidates, of the best one there"
)
_S, _F, _I, _B = pa.string(), pa.float64(), pa.int64(), pa.bool_()

RECORDS: list[Column] = [
    Column("run_id", _S, "", "the run"),
    Column("case_id", _S, "", "hash of op, shape, dtype, direction, distribution, streams, mode"),
    Column("op", _S, "", "the contract"),
    Column("implementation", _S, "", "the code that was measured"),
    Column("role", _S, "", "candidate, baseline or control"),
    Column("direction", _S, "", "forward or backward"),
    Column("dtype", _S, "", "element type of the inputs and the output"),
    Column("device", _S, "", "cuda or cpu"),
    *_shape_columns(),
    Column("length", _I, "1", "what a threshold is of: L selected keys a row, or T or S tokens"),
    Column("distribution", _S, "", "how the selection was drawn"),
    Column("streams", _I, "1", "calls that ran at once, one a stream"),
    Column("mode", _S, "", "what is timed: calls on a stream, or replays of a CUDA graph"),
    Column("status", _S, "", "outcome; everything but ok has a reason"),
    Column("reason", _S, "", "why the status is not ok, or the verdict not clear"),
    Column("diagnosis", _S, "", "which known mistake reproduces a wrong output"),
    Column("notes", _S, "", "what else is worth knowing, separated by '; '"),
    Column(
        "mae", _F, "1", "mean absolute error against the float64 oracle; of gradients the worst"
    ),
    Column("max_abs_err", _F, "1", "largest absolute error against the oracle, of any gradient"),
    Column("rel_l2", _F, "1", "||out - oracle|| / ||oracle||; of gradients the worst"),
    Column("median_ms", _F, "ms", "median time of a call"),
    Column("device_ms", _F, "ms", "median_ms less what the timer adds; null in graphs, on a CPU"),
    Column("p20_ms", _F, "ms", "20 % quantile of the time of a call"),
    Column("p80_ms", _F, "ms", "80 % quantile of the time of a call"),
    Column("n_samples", _I, "1", "timed calls"),
    Column("session", _I, "1", "implementations of a case with the same one were interleaved"),
    Column("bytes_min", _I, "byte", "compulsory memory traffic of a call"),
    Column("flops", _I, "flop", "arithmetic of a call"),
    Column("roofline_fraction", _F, "1", "least possible time on this device / median_ms"),
    Column("best_baseline", _S, "", "the fastest valid baseline measured beside the candidate"),
    Column("speedup", _F, "1", _SPEEDUP),
    Column("speedup_lo", _F, "1", "lower end of the 95 % interval of speedup"),
    Column("speedup_hi", _F, "1", "upper end of the 95 % interval of speedup"),
    Column("verdict", _S, "", "faster, slower, same, inconclusive or invalid"),
    Column("caught_by", _S, "", "of a control: the check meant to catch it"),
    Column("caught", _S, "", "of a control: caught, missed, declined or unproven"),
    Column("compile_s", _F, "s", "wall time of the first call, compilation included"),
    Column("peak_mem_bytes", _I, "byte", "device memory a call allocates at its peak"),
    Column("config", _S, "", "what the implementation says it chose for the case"),
    Column("sm_clock_mhz_min", _I, "MHz", "lowest SM clock seen during the case"),
    Column("sm_clock_mhz_max", _I, "MHz", "highest SM clock seen during the case"),
    Column("clock_event_reasons", _S, "", "NVML clock event reasons seen, separated by ', '"),
    Column("gpu_name", _S, "", "the device"),
    Column("sm", _S, "", "its compute capability, as sm_90"),
    Column("torch", _S, "", "version"),
    Column("triton", _S, "", "version"),
    Column("cuda", _S, "", "version of the CUDA that torch was built with"),
    Column("schema_version", _I, "1", "of this table"),
]

SAMPLES: list[Column] = [
    Column("run_id", _S, "", "the run"),
    Column("case_id", _S, "", "the case"),
    Column("implementation", _S, "", "the implementation"),
    Column("session", _I, "1", "samples of a session were interleaved"),
    Column("round", _I, "1", "round of the sampling; rounds pair the implementations"),
    Column("order", _I, "1", "position within the round; 0 led"),
    Column("at_s", _F, "s", "end of the sample, since the first round began, to a microsecond"),
    Column("time_ms", _F, "ms", "time of the call"),
    Column("escaped_ms", _F, "ms", "part of time_ms that outlived the end event"),
    Column("gap_hidden", _B, "", "the call was queued before the device was let go"),
    Column("sm_clock_mhz", _I, "MHz", "SM clock read last before the sample; 0: not readable"),
]


def refuse_sizes(op: ops.Op) -> None:
    """Raises `UsageError` when a size of an op has the name of a column that is no size."""
    others = {column.name for column in RECORDS} - SIZES
    for size in op.shape_model.model_fields:
        if size in others:
            raise UsageError(
                f"the op {op.name!r} calls a size {size!r}, as a column of the records is called",
                "give the size another name.",
            )


def of_records(of_ops: Iterable[str]) -> list[Column]:
    """The columns of a table with records of these ops."""
    fields = {size for name in of_ops for size in ops.get(name).shape_model.model_fields}
    return [*RECORDS, *_shape_columns(fields - SIZES)]


def schema(columns: list[Column]) -> pa.Schema:
    """The Arrow schema, with unit and meaning of each column in its field metadata."""
    return pa.schema(
        [pa.field(c.name, c.type, metadata={"unit": c.unit, "meaning": c.meaning}) for c in columns]
    )


def misfit(found: pa.Schema, columns: list[Column], needed: Iterable[str]) -> str:
    """What keeps a table from being read as `columns`, of which `needed` must be there; or ""."""
    types = {c.name: c.type for c in columns}
    for name in needed:
        there = found.get_all_field_indices(name)
        if len(there) != 1:
            return f"has {len(there) or 'no'} column{'s' if there else ''} {name}"
        if found.field(there[0]).type != types[name]:
            return f"has {found.field(there[0]).type} in column {name} and not {types[name]}"
    return ""
