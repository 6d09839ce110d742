"""The messages between preflight and its workers, beside `Step` and `Refused`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.vocabulary import Status
from nsabench.worker.protocol import Refused, Step


@dataclass(frozen=True)
class Foreign:
    """The user's files, which only a worker imports."""

    kernels: Path | None = None
    ops: Path | None = None

    @property
    def options(self) -> list[str]:
        """The options of a worker."""
        given = {"--kernels": self.kernels, "--ops": self.ops}
        return [word for option, file in given.items() if file for word in (option, str(file))]


class RecordLaunches(Message):
    """Call the candidates of these cases on a pretended GPU and record their launches.

    ahead: also those that compile kernels without Triton.
    """

    kind: Literal["record"] = "record"
    cases: list[Case]
    skip: list[str]  # OP/IMPLEMENTATION that ended an earlier worker
    ahead: bool


class Build(Message):
    """Compile a launch that was recorded."""

    kind: Literal["build"] = "build"
    key: str


Request = Annotated[RecordLaunches | Build, Field(discriminator="kind")]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


class Kernel(Message):
    """A kernel as it is specialised. kernel: empty: no launch could be recorded."""

    op: str
    implementation: str
    kernel: str = ""
    signature: str = ""
    constants: str = ""
    options: str = ""
    compiler: str = ""  # empty: Triton
    example: str = ""  # the first case that launches it
    cases: int = 1


class Launch(Kernel):
    """key: the same in every process."""

    key: str


class Trouble(Kernel):
    """An implementation that could not be recorded on `cases` of its cases."""

    status: Status
    reason: str


class RecordedLaunches(Message):
    kind: Literal["recorded"] = "recorded"
    triton: str
    torch: str
    launches: list[Launch]
    troubles: list[Trouble]


class Result(Message):
    """The result of compiling a launch. The numbers are those of the cubin."""

    status: Status
    reason: str = ""
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    warps: int | None = None
    code_bytes: int | None = None
    compile_s: float | None = None


class Built(Result):
    kind: Literal["built"] = "built"


Reply = Annotated[Step | RecordedLaunches | Built | Refused, Field(discriminator="kind")]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
