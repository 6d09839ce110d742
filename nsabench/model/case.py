"""A case: an op at one shape, dtype, direction and distribution, and how it is measured."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, model_validator

from nsabench.model.vocabulary import Direction, DType, Mode

Seed = Annotated[int, Field(ge=0, lt=2**62)]


class Strict(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """Immutable fields that a user writes. Unknown fields, NaN and infinity are refused."""


class Frozen(BaseModel, frozen=True):
    """Immutable fields. Unknown fields are ignored: another version may have written them."""


# docs/reference/matrices.md shows the docstrings of the next four classes.
class RatioCI(Strict):
    """Stop when the 95 % interval of every candidate's ratio to its best baseline is narrow.

    Also stop after `max_rounds`, after `min_rounds` and `budget_s` seconds, or after twice as long.
    """

    kind: Literal["ratio_ci"] = "ratio_ci"
    width: PositiveFloat = 0.01  # relative width of the interval
    min_rounds: PositiveInt = 20
    max_rounds: PositiveInt = 200
    budget_s: PositiveFloat = 2.0

    @model_validator(mode="after")
    def _is_in_order(self) -> RatioCI:
        if self.max_rounds < self.min_rounds:
            raise ValueError(f"max_rounds {self.max_rounds} is below min_rounds {self.min_rounds}")
        return self


class FixedCount(Strict):
    """Stop after a fixed number of rounds. A round has one sample of each implementation."""

    kind: Literal["fixed_count"]
    rounds: PositiveInt = 50


Stopping = Annotated[RatioCI | FixedCount, Field(discriminator="kind")]


class Tolerances(Strict):
    """The largest errors of a right output (docs/explanation/measurement.md, *Parity*)."""

    mae: PositiveFloat = 1e-3
    rel_l2_ratio: PositiveFloat = 1.0  # relative L2 error, in multiples of what rounding explains


class Timing(Strict):
    """How samples are taken: after `warmup_s` for each implementation, on `rotate` input sets."""

    mode: Mode = Mode.STREAM
    warmup_s: PositiveFloat = 0.025
    rotate: PositiveInt = 3
    stopping: Stopping = RatioCI()

    @property
    def is_brief(self) -> bool:
        """Whether each implementation is timed in one round, which gives no verdict."""
        return isinstance(self.stopping, FixedCount) and self.stopping.rounds == 1


class Case(Strict):
    """One measurement of an op. `id` depends on `content` and the mode, not on the run."""

    op: str
    shape: dict[str, int]
    dtype: DType
    direction: Direction
    distribution: str
    timeout_s: PositiveFloat  # time limit of each step in the worker (`running/process.py`)
    seed: Seed
    tolerances: Tolerances = Tolerances()
    timing: Timing = Timing()

    @property
    def content(self) -> dict[str, Any]:
        """The fields that decide what is launched, not how it is timed."""
        return self.model_dump(
            mode="json",
            include={"op", "shape", "dtype", "direction", "distribution"},
        )

    @cached_property
    def id(self) -> str:
        content = self.content
        if self.timing.mode is not Mode.STREAM:
            content["mode"] = self.timing.mode.value
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def mode(self) -> Mode:
        return self.timing.mode
