"""The words for roles, verdicts and so on. YAML, JSON, Parquet and reports use the same ones."""

from collections.abc import Collection
from enum import StrEnum
from typing import Self

NO_SPECIALISED = "no specialised baseline"  # the caution that a record may have
TIMED_PHASES, PROBES = ("warm-up", "timing"), "probes"  # phases of a case in the worker
# The note about a call that waits for the device, or takes more host time than the longest spin.
NO_ORDER = "it was not shown that its work is in the order of the stream: its call waits too long"


class Word(StrEnum):
    """A word with its meaning, which `nsabench explain` and the report print."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class Role(Word):
    """The purpose of an implementation."""

    CANDIDATE = "candidate", "to be judged"
    BASELINE = "baseline", "to be beaten"
    ALTERNATIVE = "alternative", "what a model could run instead; it computes another function"
    CONTROL = "control", "wrong or dishonest on purpose, to be caught"


class Kind(Word):
    """How specialised a baseline or an alternative is. It means more to beat a specialised one."""

    SPECIALISED = (
        "specialised",
        "kernels made for this op, or for an op of which it is a special case",
    )
    GENERAL = "general", "a mask, a gather or FlexAttention: made for any selection of keys"


class Status(Word):
    """The outcome of one implementation on one case. Every status except `ok` has a reason."""

    OK = "ok", "the output is right and no check objects to the time"
    WRONG = "wrong", "the output is wrong: beyond the tolerance, NaN, or for other inputs"
    IMPLAUSIBLE = "implausible", "the time is impossible: too short, or flat while the work grows"
    TIMEOUT = "timeout", "it was stopped, with everything it had started, when its time was up"
    CRASHED = "crashed", "it raised an exception, or its process died; the reason says more"
    COMPILE_ERROR = "compile_error", "its kernel could not be compiled"
    OUT_OF_MEMORY = "out_of_memory", "the device has less memory than it asked for"
    UNSUPPORTED = "unsupported", "the implementation declares that it does not support the case"
    SKIPPED = "skipped", "it was not run, because it does not run on this device"


# Every other status is a failure of the implementation.
BENIGN = frozenset({Status.OK, Status.UNSUPPORTED, Status.SKIPPED})


class Verdict(Word):
    """How a candidate compares with the best valid baseline of its case."""

    FASTER = (
        "faster",
        "the whole 95 % interval of the ratio is above 1, and the ratio is above 1.01 (in the "
        "queue 1.02)",
    )
    SLOWER = (
        "slower",
        "the whole 95 % interval of the ratio is below 1, and the ratio is below 0.99 (in the "
        "queue 0.98)",
    )
    SAME = "same", "the whole 95 % interval of the ratio is within 1 % of 1 (in the queue 2 %)"
    INCONCLUSIVE = "inconclusive", "the interval allows no verdict, or a check doubts the ratio"
    INVALID = "invalid", "there is no verdict: the candidate failed, or the run is invalid"


class Catch(Word):
    """Whether a control was caught on a case."""

    CAUGHT = "caught", "the check that must catch the control did"
    MISSED = "missed", "the check did not catch it: the run, or its regime `queue`, is invalid"
    DECLINED = "declined", "its trick has no effect on this case, or it cannot run on this device"
    UNPROVEN = (
        "unproven",
        "the control failed before that check, was not faster, or no valid baseline was timed",
    )


class ThresholdAnswer(Word):
    """Whether a candidate is worth using."""

    FROM = "from", "every tested case from that length is faster by the margin"
    NO = "no", "at the greatest tested length it is wrong, fails, or is not faster by the margin"
    NOT_DECIDED = (
        "not decided",
        "the run or its cases do not allow a decision; the reasons say why",
    )
    NOT_TESTED = "not tested", "it was measured on no case: it declined all, or cannot run here"


class Pays(Word):
    """Whether an op is worth using instead of its alternatives."""

    FROM = "from", "every tested case from that length is faster than the best alternative"
    NO = "at no length", "at the greatest tested length it is not faster in every tested case"
    NOT_DECIDED = "not decided", "the run cannot decide it, or a valid time is missing at a length"


MARGIN = 1.2  # the ratio to the best baseline that a kernel must reach, by default


class Direction(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"  # a forward that keeps what its backward needs, and that backward

    @property
    def differentiates(self) -> bool:
        return self is not Direction.FORWARD


class DType(StrEnum):
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"

    @classmethod
    def _missing_(cls, value: object) -> "DType | None":
        return cls(DTYPE_NAMES[value]) if isinstance(value, str) and value in DTYPE_NAMES else None

    @property
    def itemsize(self) -> int:
        return 4 if self is DType.FLOAT32 else 2


# Other names of these types.
DTYPE_NAMES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32"}


class Mode(StrEnum):
    """What one sample times."""

    STREAM = "stream"  # a call
    GRAPH = "graph"  # a replay of a CUDA graph of the call


class Regime(Word):
    """How an implementation is called. Each regime has its own verdicts and thresholds."""

    DEVICE = "device", "one call at a time with its launch gap hidden: the kernels alone"
    QUEUE = "queue", "calls from Python back to back, without waiting: what eager code pays"
    GRAPH = "graph", "replays of a CUDA graph, as when a server captures its decode steps"

    @classmethod
    def from_mode(cls, mode: Mode) -> "Regime":
        return cls.GRAPH if mode is Mode.GRAPH else cls.DEVICE


class Reference(Word):
    """The time that an implementation is compared with."""

    BASELINE = "baseline", "the fastest valid baseline that was interleaved with it"
    ALTERNATIVE = "alternative", "the fastest valid alternative that was interleaved with it"


class Purpose(Word):
    """The pass of a run that measures a case."""

    MAIN = "main", "all implementations of a case, interleaved in one process"
    CONFIRMATION = "confirmation", "cases with verdicts close to a limit, in another process"
    ISOLATED = (
        "isolated",
        "baselines and alternatives that were slower, timed again in a process without candidates",
    )
    CANARY = "canary", "one case that all shards of a plan measure, to compare their hosts"


class Runs(StrEnum):
    """Where an implementation runs, as its author declares."""

    CUDA = "cuda"
    CPU = "cpu"
    INTERPRETER = "interpreter"  # Triton without a GPU: only parity is checked

    @classmethod
    def timed(cls, devices: Collection[Self], device: str) -> bool:
        """Return whether an implementation for `devices` is timed on "cuda" or "cpu"."""
        return (cls.CUDA if device == "cuda" else cls.CPU) in devices


class Difference(Word):
    """How a time differs between two runs. Ratios in a band around 1 (`--band`) count as 1."""

    FASTER = "faster", "the whole 95 % interval of the ratio is above the band around 1"
    SLOWER = "slower", "the whole 95 % interval of the ratio is below the band around 1"
    SAME = "same", "the whole 95 % interval of the ratio is within the band around 1"
    INCONCLUSIVE = (
        "inconclusive",
        "the interval crosses an end of the band, or a time is in doubt: the timer was off, the "
        "device throttled or shared, or the time does not grow with the work",
    )
    INVALID = "invalid", "there is no ratio: it failed in one of the runs, or a run is invalid"


class Change(Word):
    """How a status differs between two runs."""

    BROKE = "broke", "it was ok and is no longer, or it declined the case and now fails"
    MENDED = "mended", "it was not ok and is now, or it failed and now declines the case"
    OTHER = "other", "one failure became another, or `skipped` became `unsupported` or the reverse"

    @classmethod
    def between(cls, earlier: str, later: str) -> "Change | None":
        if earlier == later:
            return None
        before, after = _badness(earlier), _badness(later)
        return cls.BROKE if after > before else cls.MENDED if after < before else cls.OTHER


def _badness(status: str) -> int:
    return 0 if status == Status.OK else 1 if status in BENIGN else 2
