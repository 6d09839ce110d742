"""A row of the result of a preflight, and the messages to and from the preflight's workers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.channel import Refused, Step
from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.vocabulary import BENIGN, Status


class CompiledLaunch(Message):
    """A launch, compiled by one Triton for one architecture. Resources are None without a cubin."""

    key: str = Field("", description="equal for launches that compile to the same code")
    op: str
    implementation: str
    kernel: str = Field("", description="empty if no launch could be recorded")
    signature: str = ""
    constants: str = ""
    options: str = ""
    compiler: str = Field(
        "",
        description="the compiler, if not Triton; it then compiles once for each architecture",
    )
    example: str = Field("", description="the first case that launches it")
    cases: int = Field(1, description="1; cases of the matrices that launch it")
    status: Status = Status.OK
    reason: str = ""
    registers: int | None = Field(None, description="1; registers of a thread")
    spill_bytes: int | None = Field(
        None, description="byte; stack of a thread, which holds spilled registers"
    )
    shared_bytes: int | None = Field(None, description="byte; shared memory of a block")
    warps: int | None = Field(None, description="1; warps of a block")
    cubin_bytes: int | None = Field(None, description="byte; size of the compiled code")
    compile_s: float | None = Field(
        None, description="s; wall time of compilation, short for a kernel in Triton's cache"
    )
    triton: str
    torch: str
    architecture: str
    shared_limit_bytes: int | None = Field(
        None, description="byte; the most shared memory that the architecture gives a block"
    )
    schema_version: int = 1

    @property
    def failed(self) -> bool:
        return self.status not in BENIGN


class RecordLaunches(Message):
    """Ask for the launches of candidates; if `ahead`, also for kernels of other compilers."""

    kind: Literal["record"] = "record"
    cases: list[Case]
    skip: list[str]  # each OP/IMPLEMENTATION that ended an earlier worker
    ahead: bool


class RecordedLaunches(Message):
    kind: Literal["recorded"] = "recorded"
    launches: list[CompiledLaunch]


class Build(Message):
    kind: Literal["build"] = "build"
    launch: CompiledLaunch


class Built(Message):
    kind: Literal["built"] = "built"
    launch: CompiledLaunch


Request = Annotated[RecordLaunches | Build, Field(discriminator="kind")]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
Reply = Annotated[Step | RecordedLaunches | Built | Refused, Field(discriminator="kind")]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
