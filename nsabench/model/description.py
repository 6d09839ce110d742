"""How a worker describes the software and the device that it sees."""

from __future__ import annotations

from typing import Literal

from nsabench.model.outcome import Message


class Described(Message):
    kind: Literal["described"] = "described"
    software: dict[str, str | None]
    device: dict[str, str | int | float | None]
