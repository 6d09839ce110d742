"""Define what a worker measures: samples, observations, and the state of the device."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from nsabench.model.vocabulary import Regime, Status

# A worker may send any number. Sums, squares and ratios of numbers within these limits are finite.
Whole = Annotated[int, Field(gt=-(1 << 53), lt=1 << 53)]
Number = Annotated[float, Field(gt=-1e100, lt=1e100)]
Time = Annotated[float, Field(gt=-1e12, lt=1e12)]  # ms: thirty years
Duration = Annotated[float, Field(ge=1e-9, lt=1e12)]  # ms: no clock resolves less


class Message(BaseModel, extra="forbid", allow_inf_nan=False):
    """Passes between processes, or is an entry of a log: no unknown fields, no NaN."""


class Samples(Message):
    """Raw timings of one implementation, one entry a sample."""

    round: list[Whole] = []
    order: list[Whole] = []  # position within the round; the leader is 0
    at_s: list[Time] = []  # since the first sample of the case
    time_ms: list[Duration] = []
    escaped_ms: list[Time] = []  # part of time_ms after the end event
    gap_hidden: list[bool] = []  # Whether the spin outlasted the launch.
    host_us: list[Time] = []  # of the host in the call; 0 if the device was not held
    sm_clock_mhz: list[Whole] = []  # 0 if unreadable

    @property
    def calls(self) -> list[int]:
        return [1] * len(self.time_ms)

    @model_validator(mode="after")
    def _even(self) -> Samples:
        count = len(self.time_ms)
        lengths = set(map(len, self.__dict__.values()))
        if len(self.round) != count or not lengths <= {0, count}:
            raise ValueError("the lists of samples differ in length")
        return self


class Bursts(Message):
    """Calls back to back, as a caller in Python makes them. One entry a burst."""

    calls: list[Annotated[Whole, Field(ge=1)]] = []
    time_ms: list[Duration] = []  # of a call

    @property
    def round(self) -> list[int]:
        return list(range(len(self.time_ms)))

    @model_validator(mode="after")
    def _even(self) -> Bursts:
        if len(self.calls) != len(self.time_ms):
            raise ValueError("the lists of bursts differ in length")
        return self


class Judged(Message):
    """The status of an implementation, with a reason if it is wrong, and its largest errors."""

    status: Status = Status.OK
    reason: str = ""
    # If it is ok: what its error looks like if the checks then find it wrong.
    diagnosis: str = ""
    diagnosis_id: str = ""  # such as `not-causal`
    worst_element: str = ""  # of what is wrong: its index, and what was found and expected
    mae: Number | None = None
    max_abs_err: Number | None = None
    rel_l2: Number | None = None
    worst_row: Number | None = None
    worst_row_at: str = ""
    rows_compared: Whole | None = None  # of the output, with the oracle; None: all


class Observation(Judged):
    implementation: str
    status: Status
    compile_s: Number | None = None
    peak_mem_bytes: Whole | None = None
    config: str = ""
    # Samples of one attempt were interleaved, so only they may form a ratio.
    attempt: Whole = 0
    samples: Samples = Samples()
    bursts: Bursts = Bursts()
    launches: Whole | None = None  # of a call; None: not counted
    kernels_us: Number | None = None  # the sum of their times
    notes: list[str] = []
    traceback: str = ""  # moved to a file of the case

    def timings(self, regime: Regime) -> Samples | Bursts:
        return self.bursts if regime is Regime.QUEUE else self.samples

    @model_validator(mode="after")
    def _status_decides(self) -> Observation:
        if self.status is not Status.OK and not self.reason:
            raise ValueError(f"status {self.status} needs a reason")
        if self.status is not Status.OK and (self.samples.time_ms or self.bursts.time_ms):
            raise ValueError(f"status {self.status} has no samples")
        return self


class Conditions(Message):
    """Readings of the device's sensors while a case was measured; None if unreadable."""

    sm_clock_mhz_min: Whole | None = None
    sm_clock_mhz_max: Whole | None = None
    mem_clock_mhz: Whole | None = None
    temperature_c_max: Whole | None = None
    power_w_max: Number | None = None
    clock_event_reasons: list[str] = []
    competing_processes: Whole = 0


class Ceilings(Message):
    """The best that this device did in this run; a roofline is drawn from it."""

    copy_gb_s: Number | None = None  # bytes read plus bytes written
    l2_gb_s: Number | None = None
    tflop_s: dict[str, Number] = {}
    timer_floor_ms: Number | None = None  # of an empty call
    timer_offset_ms: Number | None = None  # time by events less time by a clock in the kernel
    known_duration_error: Number | None = None  # relative, on a kernel of known duration
    cpu_flush_bytes: int | None = None  # Read before each sample on a CPU.
