"""What supervisor and worker say to each other: one JSON object a line, typed here and only here.

This module imports no torch: the supervisor reads it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.measurement import Ceilings, Conditions, Message, Number, Outcome, Time
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Status

# --- supervisor -> worker

GO = b"go\n"  # beside the requests: what a step awaits


class Sandbox(Message):
    """What a worker may write to, and what it must not see. Given to it as it starts.

    begins_as: the scratch of others, whose caches of compilers are copied into its own first; empty
    for none.
    """

    scratch: str
    hidden: list[str]
    begins_as: str = ""


class Discover(Message):
    kind: Literal["discover"] = "discover"


class Describe(Message):
    """Tell about the software and the device this worker sees."""

    kind: Literal["describe"] = "describe"


class Calibrate(Message):
    """Measure the ceilings and check the timer."""

    kind: Literal["calibrate"] = "calibrate"


class Spare(Message):
    """Who need not be measured as the others are: one of these baselines that is hopelessly behind
    another and takes `least_ms` or more a call, where so many others of them are right and stay."""

    baselines: tuple[str, ...] = ()
    stay: int = 1
    least_ms: Time = 0.0


NOBODY = Spare()


class Measure(Message):
    """Measure implementations of a case together."""

    kind: Literal["measure"] = "measure"
    case: Case
    implementations: list[str]
    session: int
    spare: Spare = NOBODY


class Compile(Message):
    """Call an implementation of a case twice, for what that leaves in the caches of compilers."""

    kind: Literal["compile"] = "compile"
    case: Case
    implementation: str


class Sheet(Message):
    """Where a tensor lies in a file. offset: in bytes; dtype: as torch calls it."""

    name: str
    dtype: str
    shape: list[int]
    offset: int


class Examine(Message):
    """Call an implementation on inputs that it has never seen, one set after another.

    questions: by set, where its tensors lie in its file, `inputs`.0 and so on. They are there once
    step `NEW_INPUTS` was heard; in turn, the first is, and each further one when it was asked for
    with a byte in the pipe `turns`.asked, and a byte came in `turns`.given. options: by set, as the
    referee pickled them; answers: by set, where results go in the file `outputs`, which is made.
    gradients: where in `gradient`.0 and so on the gradient of each output lies; those come with the
    inputs. In a backward all inputs come at once, and the gradients as the inputs do otherwise,
    with step `NEW_GRADIENTS`. again: of a process that can be trusted, warm up, and say how long
    the calls take there, too.
    """

    kind: Literal["examine"] = "examine"
    case: Case
    implementation: str
    inputs: str
    questions: list[list[Sheet]]
    options: str
    outputs: str
    answers: list[list[Sheet]]
    in_turn: bool = False
    turns: str = ""
    gradient: str = ""
    gradients: list[Sheet] = Field(default=[])
    again: bool = False


NEW_INPUTS, NEW_GRADIENTS = "new inputs", "new gradients"

Request = Annotated[
    Discover | Describe | Calibrate | Compile | Measure | Examine, Field(discriminator="kind")
]
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


class Compiled(Message):
    """How long the first call took, and the second; or why there were none."""

    kind: Literal["compiled"] = "compiled"
    first_s: Time = 0.0
    second_s: Time = 0.0
    reason: str = ""
    is_unsupported: bool = False


class Measured(Message):
    kind: Literal["measured"] = "measured"
    outcomes: list[Outcome]
    conditions: Conditions = Conditions()
    measuring_s: float = 0.0  # spent inside kernels, compile and warm-up, as opposed to the harness
    queue_s: float = 0.0  # spent on what the queue shows alone: bursts, and counting launches


class Examined(Message):
    """All was called and written; or why not.

    own_ms: of a call that was made again, by the clock of that process. besides_ms: of all that was
    done for its sake, and to warm up.
    """

    kind: Literal["examined"] = "examined"
    own_ms: Time | None = None
    besides_ms: Time = 0.0
    status: Status = Status.OK
    reason: str = ""


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
    Step
    | Discovered
    | Described
    | Calibrated
    | Compiled
    | Measured
    | Examined
    | LostDevice
    | Refused,
    Field(discriminator="kind"),
]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)


# --- supervisor -> referee


class Pose(Message):
    """Draw up to `count` sets of inputs of the op that is computed, into new files, `path`.0 and so
    on; gradients of the outputs, where the case differentiates, into `gradient`.0 and so on."""

    kind: Literal["pose"] = "pose"
    case: Case
    computes: str
    count: int
    path: str
    gradient: str = ""


class Judge(Message):
    """Hold the outputs in a file to the oracle of what was posed last."""

    kind: Literal["judge"] = "judge"
    path: str


EXAMINATION: TypeAdapter[Pose | Judge] = TypeAdapter(
    Annotated[Pose | Judge, Field(discriminator="kind")]
)


# --- referee -> supervisor


class Posed(Message):
    """Where the inputs lie, and where outputs go, so many bytes together; or why there are none."""

    kind: Literal["posed"] = "posed"
    questions: list[list[Sheet]] = Field(default=[])
    options: str = ""
    gradients: list[Sheet] = Field(default=[])
    answers: list[list[Sheet]] = Field(default=[])
    answer_bytes: int = 0
    reason: str = ""


class Judged(Message):
    """How far the outputs are off, the worst of each kind, or what is wrong with them."""

    kind: Literal["judged"] = "judged"
    reason: str = ""
    mae: Number | None = None
    max_abs_err: Number | None = None
    rel_l2: Number | None = None
    worst_row: Number | None = None
    worst_row_at: str = ""


OF_A_REFEREE: TypeAdapter[Step | Posed | Judged | Refused] = TypeAdapter(
    Annotated[Step | Posed | Judged | Refused, Field(discriminator="kind")]
)
