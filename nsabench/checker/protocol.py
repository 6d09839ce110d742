"""The messages between supervisor (the main process) and checker. This module imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.delivery import Delivery, Form
from nsabench.model.case import Case, Seed
from nsabench.model.measurement import Judged, Message
from nsabench.model.vocabulary import Status


class Prepare(Message):
    """Compute a case's right results for each seed's inputs, for fewer seeds if memory is short.

    computes: the ops that the implementations compute; "" stands for the op of the case.
    probes: also compute the right results of the op's probes, small problems with unusual inputs.
    """

    kind: Literal["prepare"] = "prepare"
    case: Case
    computes: list[str]
    seeds: list[Seed]
    probes: bool = False


class Conclude(Message):
    kind: Literal["conclude"] = "conclude"
    diagnosed: list[str]


REQUEST: TypeAdapter[Prepare | Delivery | Conclude] = TypeAdapter(
    Annotated[Prepare | Delivery | Conclude, Field(discriminator="kind")]
)


class NoOracle(Message):
    status: Status
    reason: str


class Prepared(Message):
    """The shapes and dtype of the right results by op and by probe, or why an op has no oracle."""

    kind: Literal["prepared"] = "prepared"
    forms: dict[str, Form] = Field(default={})
    failures: dict[str, NoOracle] = Field(default={})
    probes: dict[str, Form] = Field(default={})

    @property
    def nbytes(self) -> int:
        return max((f.nbytes for f in (*self.forms.values(), *self.probes.values())), default=0)


class Checked(Message):
    kind: Literal["checked"] = "checked"
    right: bool


class Concluded(Message):
    kind: Literal["concluded"] = "concluded"
    judged: dict[str, Judged]
