"""What preflight and its workers say to each other, beside `Step` and `Refused`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.execution.protocol import Refused, Step
from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.vocabulary import Status


@dataclass(frozen=True)
class Foreign:
    """The user's files, which a worker imports and the supervisor only names."""

    kernels: Path | None = None
    ops: Path | None = None

    @property
    def options(self) -> list[str]:
        """What tells a worker of them."""
        given = {"--kernels": self.kernels, "--ops": self.ops}
        return [word for option, file in given.items() if file for word in (option, str(file))]


class RecordLaunches(Message):
    """Call the candidates of these cases on a pretended GPU and note what they launch.

    ahead: also ask those that compile kernels themselves, which no Triton has a part in.
    """

    kind: Literal["record"] = "record"
    cases: list[Case]
    skip: list[str]  # OP/IMPLEMENTATION that took an earlier worker down
    ahead: bool


class Build(Message):
    """Compile a launch that was recorded."""

    kind: Literal["build"] = "build"
    key: str


Request = Annotated[RecordLaunches | Build, Field(discriminator="kind")]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


class Launch(Message):
    """A distinct launch: the kernel as it is specialised. `key` is the same in every process."""

    key: str
    op: str
    implementation: str
    kernel: str
    signature: str
    constants: str
    options: str
    example: str  # the first case that launches it
    compiler: str = ""  # of its own; empty: Triton
    content: str = ""  # a hash of all that it is compiled from; empty: not known
    cases: int = 1


class Trouble(Message):
    """An implementation that could not be recorded on `cases` of its cases."""

    op: str
    implementation: str
    status: Status
    reason: str
    example: str
    cases: int = 1


class RecordedLaunches(Message):
    kind: Literal["recorded"] = "recorded"
    triton: str
    torch: str
    launches: list[Launch]
    troubles: list[Trouble]


class Built(Message):
    """What the compiler made of a launch. The numbers are those of the cubin."""

    kind: Literal["built"] = "built"
    status: Status
    reason: str = ""
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    warps: int | None = None
    code_bytes: int | None = None
    compile_s: float | None = None
    content: str = ""  # of the launch as this was built of it; empty: not known


Reply = Annotated[Step | RecordedLaunches | Built | Refused, Field(discriminator="kind")]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
