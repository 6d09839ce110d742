"""Define the messages between a worker and its supervisor, which has no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.channel import Refused, Step
from nsabench.checker.protocol import Prepared
from nsabench.delivery import Delivery
from nsabench.model.case import Case, Seed
from nsabench.model.description import Described
from nsabench.model.job import ALL_STAY, EarlyExit
from nsabench.model.measurement import Ceilings, Conditions, Message, Observation, Time
from nsabench.model.plan import ImplementationInfo


class Sandbox(Message):
    scratch: str  # the folder that a worker may write to
    hidden: list[str]  # paths that a worker may not read
    begins_as: str = ""  # another scratch, whose compiler caches are copied first


class Discover(Message):
    kind: Literal["discover"] = "discover"


class Describe(Message):
    kind: Literal["describe"] = "describe"


class MeasureCeilings(Message):
    kind: Literal["measure_ceilings"] = "measure_ceilings"


class Measure(Message):
    kind: Literal["measure"] = "measure"
    case: Case
    implementations: list[str]
    prepared: Prepared
    seeds: list[Seed]  # one for each set of inputs
    early_exit: EarlyExit = ALL_STAY


class Compile(Message):
    kind: Literal["compile"] = "compile"
    case: Case
    implementation: str
    probes: bool  # whether to call a candidate also on the probes of the case


Request = Annotated[
    Discover | Describe | MeasureCeilings | Compile | Measure, Field(discriminator="kind")
]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


class Discovered(Message):
    kind: Literal["discovered"] = "discovered"
    implementations: list[ImplementationInfo]


class MeasuredCeilings(Message):
    kind: Literal["measured_ceilings"] = "measured_ceilings"
    ceilings: Ceilings


class Compiled(Message):
    """The time of the first call, or why a call failed."""

    kind: Literal["compiled"] = "compiled"
    first_s: Time = 0.0
    reason: str = ""


class Measured(Message):
    kind: Literal["measured"] = "measured"
    observations: list[Observation]
    conditions: Conditions = Conditions()
    measuring_s: float = 0.0  # seconds in kernels, compilation and warm-up


class LostDevice(Message):
    kind: Literal["lost_device"] = "lost_device"
    implementation: str
    reason: str


Reply = Annotated[
    Step
    | Discovered
    | Described
    | MeasuredCeilings
    | Compiled
    | Measured
    | Delivery
    | LostDevice
    | Refused,
    Field(discriminator="kind"),
]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
