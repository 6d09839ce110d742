"""What supervisor and worker say to each other: one JSON object a line, typed here and only here.

This module imports no torch: the supervisor reads it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.checker.messages import Prepared
from nsabench.delivery import Delivery
from nsabench.errors import NsabenchError
from nsabench.model.case import Case, Seed
from nsabench.model.description import Described
from nsabench.model.job import ALL_STAY, EarlyExit
from nsabench.model.measurement import Ceilings, Conditions, Message, Observation, Time
from nsabench.model.plan import ImplementationInfo

# --- supervisor -> worker

GO = b"go\n"  # beside the requests: what a step awaits


class Sandbox(Message):
    """The folder that a worker may write to, and the paths that it must not see.

    begins_as: a scratch whose caches of compilers are copied into its own first; empty for none.
    """

    scratch: str
    hidden: list[str]
    begins_as: str = ""


class Discover(Message):
    kind: Literal["discover"] = "discover"


class Describe(Message):
    kind: Literal["describe"] = "describe"


class Calibrate(Message):
    kind: Literal["calibrate"] = "calibrate"


class Measure(Message):
    """Measure implementations of a case together.

    prepared: what the checker has oracles for. seeds: of the sets of inputs, not of the case.
    """

    kind: Literal["measure"] = "measure"
    case: Case
    implementations: list[str]
    prepared: Prepared
    seeds: list[Seed]
    early_exit: EarlyExit = ALL_STAY


class Compile(Message):
    """Call an implementation of a case twice, for what that leaves in the caches of compilers."""

    kind: Literal["compile"] = "compile"
    case: Case
    implementation: str


Request = Annotated[
    Discover | Describe | Calibrate | Compile | Measure, Field(discriminator="kind")
]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


# --- worker -> supervisor


class Step(Message):
    """The worker begins a step, and its deadline is renewed.

    awaits: it reads the line `GO` first, so that the supervisor knows of what it does next.
    allowance: times the limit of a step of one implementation.
    """

    kind: Literal["step"] = "step"
    phase: str
    implementation: str = ""
    allowance: float = Field(default=1.0, gt=0)
    awaits: bool = False


class Discovered(Message):
    kind: Literal["discovered"] = "discovered"
    implementations: list[ImplementationInfo]


class Calibrated(Message):
    kind: Literal["calibrated"] = "calibrated"
    ceilings: Ceilings


class Compiled(Message):
    """How long the first and the second call took, or why they failed."""

    kind: Literal["compiled"] = "compiled"
    first_s: Time = 0.0
    second_s: Time = 0.0
    reason: str = ""
    is_unsupported: bool = False


class Measured(Message):
    kind: Literal["measured"] = "measured"
    observations: list[Observation]
    conditions: Conditions = Conditions()
    measuring_s: float = 0.0  # spent inside kernels, compile and warm-up, as opposed to the harness
    queue_s: float = 0.0  # spent on what the queue shows alone: bursts, and counting launches


class LostDevice(Message):
    """A sticky CUDA error: this process can use the device no more."""

    kind: Literal["lost_device"] = "lost_device"
    implementation: str
    reason: str


class Refused(Message):
    """An error that the user can mend, such as a broken file of kernels. The worker ends."""

    kind: Literal["refused"] = "refused"
    sentence: str
    remedy: str
    exit_code: int

    @classmethod
    def of(cls, error: NsabenchError) -> Refused:
        return cls(sentence=str(error), remedy=error.remedy, exit_code=error.exit_code)


Reply = Annotated[
    Step
    | Discovered
    | Described
    | Calibrated
    | Compiled
    | Measured
    | Delivery
    | LostDevice
    | Refused,
    Field(discriminator="kind"),
]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
