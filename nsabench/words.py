"""The closed vocabularies of nsabench. They appear unchanged in YAML, JSON, Parquet and reports."""

from enum import StrEnum


class Role(StrEnum):
    """What an implementation is there for."""

    CANDIDATE = "candidate"  # to be judged
    BASELINE = "baseline"  # to be beaten
    CONTROL = "control"  # wrong or dishonest on purpose, to be caught


class Status(StrEnum):
    """The outcome of one implementation on one case. Everything but `ok` carries a reason."""

    OK = "ok"
    WRONG = "wrong"
    IMPLAUSIBLE = "implausible"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    COMPILE_ERROR = "compile_error"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"


# What an implementation may honestly answer; every other status is a failure of it.
BENIGN = frozenset({Status.OK, Status.UNSUPPORTED, Status.SKIPPED})


class Verdict(StrEnum):
    """What is known about a candidate against the best valid baseline of its case."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


class Direction(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"


class DType(StrEnum):
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.FLOAT32 else 2


class Runs(StrEnum):
    """Where an implementation runs, as declared by its author."""

    CUDA = "cuda"
    CPU = "cpu"
    # A Triton kernel on a machine without a GPU: its parity is checked, its time means nothing.
    INTERPRETER = "interpreter"
