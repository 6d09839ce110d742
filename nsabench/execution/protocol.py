"""What supervisor and worker say to each other: one JSON object a line, typed here and only here.

This module imports no torch: the supervisor reads it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Status


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Samples(Message):
    """Raw timings of one implementation, one entry a sample, in the order they were taken."""

    round: list[int] = []
    order: list[int] = []  # position within the round; the leader is 0
    at_s: list[float] = []  # since the first sample of the case
    time_ms: list[float] = []
    escaped_ms: list[float] = []  # part of time_ms that ran on after the end event
    gap_hidden: list[bool] = []  # the launch was queued before the device was let go
    sm_clock_mhz: list[int] = []  # 0 where it cannot be read

    @model_validator(mode="after")
    def _even(self) -> Samples:
        taken = len(self.time_ms)
        lists = (getattr(self, name) for name in type(self).model_fields)
        if len(self.round) != taken or any(len(values) not in (0, taken) for values in lists):
            raise ValueError("the lists of samples differ in length")
        if any(time <= 0 for time in self.time_ms):
            raise ValueError("a time is not above 0")
        return self


class Outcome(Message):
    """What a worker found out about one implementation on one case."""

    implementation: str
    status: Status
    reason: str = ""
    diagnosis: str = ""
    mae: float | None = None
    max_abs_err: float | None = None
    rel_l2: float | None = None
    compile_s: float | None = None
    peak_mem_bytes: int | None = None
    config: str = ""
    # Samples of outcomes with the same session were interleaved, so only they may form a ratio.
    session: int = 0
    samples: Samples = Samples()
    notes: list[str] = []
    log: str = ""

    @model_validator(mode="after")
    def _status_decides(self) -> Outcome:
        if self.status is not Status.OK and not self.reason:
            raise ValueError(f"status {self.status} needs a reason")
        if self.status is not Status.OK and self.samples.time_ms:
            raise ValueError(f"status {self.status} has no samples")
        return self


class Conditions(Message):
    """What the device's own sensors said while a case was measured. None: could not be read."""

    sm_clock_mhz_min: int | None = None
    sm_clock_mhz_max: int | None = None
    mem_clock_mhz: int | None = None
    temperature_c_max: int | None = None
    power_w_max: float | None = None
    clock_event_reasons: list[str] = []
    competing_processes: int = 0


class Ceilings(Message):
    """What this device was measured to do in this run; a roofline is drawn from it."""

    copy_gb_s: float | None = None
    l2_gb_s: float | None = None
    tflop_s: dict[str, float] = {}
    timer_floor_ms: float | None = None  # read for an empty call
    timer_offset_ms: float | None = None  # read beyond a kernel's own time, by its own clock
    known_duration_error: float | None = None  # relative error on a kernel of known duration


# --- supervisor -> worker


class Discover(Message):
    kind: Literal["discover"] = "discover"


class Describe(Message):
    """Tell about the software and the device this worker sees."""

    kind: Literal["describe"] = "describe"


class Calibrate(Message):
    """Measure the ceilings and check the timer."""

    kind: Literal["calibrate"] = "calibrate"


class Measure(Message):
    kind: Literal["measure"] = "measure"
    case: Case
    implementations: list[str]
    session: int


Request = Annotated[Discover | Describe | Calibrate | Measure, Field(discriminator="kind")]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


# --- worker -> supervisor


class Step(Message):
    """Progress: from here on the worker is busy with this; the step's deadline starts anew."""

    kind: Literal["step"] = "step"
    phase: str
    implementation: str = ""
    allowance: float = Field(default=1.0, gt=0)  # times the limit of one implementation's step


class Discovered(Message):
    kind: Literal["discovered"] = "discovered"
    implementations: list[ImplementationInfo]


class Described(Message):
    kind: Literal["described"] = "described"
    software: dict[str, str | None]
    device: dict[str, str | int | float | None]


class Calibrated(Message):
    kind: Literal["calibrated"] = "calibrated"
    ceilings: Ceilings


class Measured(Message):
    kind: Literal["measured"] = "measured"
    outcomes: list[Outcome]
    conditions: Conditions = Conditions()
    measuring_s: float = 0.0  # spent inside kernels, compile and warm-up, as opposed to the harness


class Poisoned(Message):
    """The device context is lost to this process (a sticky CUDA error); `implementation` did it."""

    kind: Literal["poisoned"] = "poisoned"
    implementation: str
    reason: str


class Refused(Message):
    """An error the user can mend (a broken kernels file, no GPU); the worker ends after it."""

    kind: Literal["refused"] = "refused"
    sentence: str
    remedy: str
    exit_code: int


Reply = Annotated[
    Step | Discovered | Described | Calibrated | Measured | Poisoned | Refused,
    Field(discriminator="kind"),
]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
