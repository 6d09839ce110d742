"""What supervisor and worker say to each other: one JSON object a line, typed here and only here.

This module imports no torch: the supervisor reads it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.measurement import Ceilings, Conditions, Message, Outcome
from nsabench.model.plan import ImplementationInfo

# --- supervisor -> worker

GO = b"go\n"  # beside the requests: what a step awaits


class Sandbox(Message):
    """What a worker may write to, and what it must not see. Given to it as it starts."""

    scratch: str
    hidden: list[str]


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
    """Progress: from here on the worker is busy with this; the step's deadline starts anew.

    awaits: it goes on when it has read a line, `GO`, so that what it does next cannot come before
    the supervisor knows of it.
    """

    kind: Literal["step"] = "step"
    phase: str
    implementation: str = ""
    allowance: float = Field(default=1.0, gt=0)  # times the limit of one implementation's step
    awaits: bool = False


class Discovered(Message):
    kind: Literal["discovered"] = "discovered"
    implementations: list[ImplementationInfo]


class Calibrated(Message):
    kind: Literal["calibrated"] = "calibrated"
    ceilings: Ceilings


class Measured(Message):
    kind: Literal["measured"] = "measured"
    outcomes: list[Outcome]
    conditions: Conditions = Conditions()
    measuring_s: float = 0.0  # spent inside kernels, compile and warm-up, as opposed to the harness


class LostDevice(Message):
    """The device is lost to this process (a sticky CUDA error) since `implementation` used it."""

    kind: Literal["lost_device"] = "lost_device"
    implementation: str
    reason: str


class Refused(Message):
    """An error the user can mend (a broken kernels file, no GPU); the worker ends after it."""

    kind: Literal["refused"] = "refused"
    sentence: str
    remedy: str
    exit_code: int


Reply = Annotated[
    Step | Discovered | Described | Calibrated | Measured | LostDevice | Refused,
    Field(discriminator="kind"),
]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
