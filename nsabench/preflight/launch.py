"""One row of the result, and the messages between preflight and its workers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.channel import Refused, Step
from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.vocabulary import BENIGN, Status


class CompiledLaunch(Message):
    """A launch compiled for one architecture and Triton; numbers are None without a cubin."""

    key: str = Field("", description="equal for launches that compile to the same code")
    op: str
    implementation: str
    kernel: str = Field("", description="empty if no launch could be recorded")
    signature: str = ""
    constants: str = ""
    options: str = ""
    compiler: str = Field(
        "",
        description="of a kernel that Triton does not compile; such are compiled once, not per "
        "Triton",
    )
    example: str = Field("", description="the first of those cases")
    cases: int = Field(1, description="1; cases of the matrices that launch it")
    status: Status = Status.OK
    reason: str = ""
    registers: int | None = Field(None, description="1; registers a thread")
    spill_bytes: int | None = Field(
        None, description="byte; stack a thread, where spilled registers live"
    )
    shared_bytes: int | None = Field(None, description="byte; shared memory a block")
    warps: int | None = Field(None, description="1; warps a block")
    cubin_bytes: int | None = Field(None, description="byte; what the compiler made")
    compile_s: float | None = Field(
        None, description="s; wall time of compilation, short for a kernel in Triton's cache"
    )
    triton: str
    torch: str
    architecture: str
    shared_limit_bytes: int | None = Field(
        None, description="byte; shared memory the architecture gives a block"
    )
    schema_version: int = 1

    @property
    def failed(self) -> bool:
        return self.status not in BENIGN


class RecordLaunches(Message):
    """Asks for the launches of the candidates; `ahead` includes kernels without Triton."""

    kind: Literal["record"] = "record"
    cases: list[Case]
    skip: list[str]  # OP/IMPLEMENTATION that ended an earlier worker
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
