"""Define what a worker measures: samples, observations, and the state of the device."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from nsabench.model.vocabulary import Regime, Status

# A worker can send any number. Within these limits, sums, squares and ratios stay finite.
Whole = Annotated[int, Field(gt=-(1 << 53), lt=1 << 53)]
Number = Annotated[float, Field(gt=-1e100, lt=1e100)]
Time = Annotated[float, Field(gt=-1e12, lt=1e12)]  # ms, up to thirty years
Duration = Annotated[float, Field(ge=1e-9, lt=1e12)]  # ms; no clock resolves less


class Message(BaseModel, extra="forbid", allow_inf_nan=False):
    """A message between processes, or an entry of a log. Unknown fields and NaN are refused."""


class Samples(Message):
    """Raw timings of one implementation: each list is empty or has one entry for each sample."""

    round: list[Whole] = []
    order: list[Whole] = []  # position within the round, from 0
    at_s: list[Time] = []  # end of the sample, since the first round began
    time_ms: list[Duration] = []
    escaped_ms: list[Time] = []  # part of time_ms in which the device worked after the end event
    gap_hidden: list[bool] = []  # whether the call was queued before a spin kernel ended
    host_us: list[Time] = []  # time that the call held the CPU; 0 if no spin outlasted the call
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
    """Bursts of calls back to back, as a caller in Python makes them: an entry for each burst."""

    calls: list[Annotated[Whole, Field(ge=1)]] = []
    time_ms: list[Duration] = []  # the time of a burst divided by the number of its calls

    @property
    def round(self) -> list[int]:
        return list(range(len(self.time_ms)))

    @model_validator(mode="after")
    def _even(self) -> Bursts:
        if len(self.calls) != len(self.time_ms):
            raise ValueError("the lists of bursts differ in length")
        return self


class Judged(Message):
    """The status of an implementation, with a reason unless it is ok, and its errors."""

    status: Status = Status.OK
    reason: str = ""
    # Also set for an `ok` status if `check_parity` will find the worst row wrong.
    diagnosis: str = ""
    diagnosis_id: str = ""  # such as `not-causal`
    worst_element: str = ""  # index, value and right value of the element farthest off
    mae: Number | None = None
    max_abs_err: Number | None = None
    rel_l2: Number | None = None
    worst_row: Number | None = None
    worst_row_at: str = ""
    rows_compared: Whole | None = None  # rows of the output compared with the oracle; None: all


class Observation(Judged):
    implementation: str
    status: Status
    compile_s: Number | None = None
    peak_mem_bytes: Whole | None = None
    config: str = ""
    # Implementations with equal attempts were interleaved, as a ratio between them needs.
    attempt: Whole = 0
    samples: Samples = Samples()
    bursts: Bursts = Bursts()
    launches: Whole | None = None  # kernels, copies and fills of a call; None: not counted
    kernels_us: Number | None = None  # the sum of the times of these launches
    notes: list[str] = []
    traceback: str = ""  # empty in the log: it goes to the case's file of printed output

    def timings(self, regime: Regime) -> Samples | Bursts:
        return self.bursts if regime is Regime.QUEUE else self.samples

    @model_validator(mode="after")
    def _status_decides(self) -> Observation:
        if self.status is not Status.OK and not self.reason:
            raise ValueError(f"status {self.status} needs a reason")
        if self.status is not Status.OK and (self.samples.time_ms or self.bursts.time_ms):
            raise ValueError(f"status {self.status} may not have samples")
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
    """The best rates of this device in this run, for the roofline, and errors of the timer."""

    copy_gb_s: Number | None = None  # bytes read plus bytes written
    l2_gb_s: Number | None = None
    tflop_s: dict[str, Number] = {}
    timer_floor_ms: Number | None = None  # the time that the timer reads for an empty call
    timer_offset_ms: Number | None = None  # time by events minus time by a clock in the kernel
    known_duration_error: Number | None = None  # relative error for a kernel of known duration
    cpu_flush_bytes: int | None = None  # bytes read before each sample on a CPU
