"""Ops that runs were once made with. Such a run can be read, checked and reported; no plan, matrix
or implementation can name one.

`decode` was one op, whose distributions were five works: today each is an op of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

from nsabench.model.vocabulary import DType
from nsabench.ops._contract import Inputs, Op, Shape, Work
from nsabench.ops._decode import CacheShape, DecodeOp
from nsabench.ops.decode_compressed import OP as COMPRESSED
from nsabench.ops.decode_dense import OP as DENSE
from nsabench.ops.decode_selected import OP as SELECTED
from nsabench.ops.decode_step import OP as STEP
from nsabench.ops.decode_step import StepShape
from nsabench.ops.decode_window import OP as WINDOW

if TYPE_CHECKING:
    from torch import Tensor


class Decode(DecodeOp):
    """Read only: its cases have the sizes of all five works, whichever theirs is."""

    name = "decode"
    shape_model = StepShape
    successors: ClassVar[dict[str, DecodeOp]] = {
        "total": STEP,
        "cmp": COMPRESSED,
        "sel": SELECTED,
        "win": WINDOW,
        "dense": DENSE,
    }
    distributions = tuple(successors)

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        assert isinstance(shape, CacheShape)
        successor = self.successors[distribution]
        fields = successor.shape_model.model_fields
        own = successor.shape_model.model_validate(shape.model_dump(include=set(fields)))
        return successor.work(own, dtype, "random", seed)

    def draw(
        self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str
    ) -> NoReturn:
        raise NotImplementedError(f"no new run is made of {self.name}")

    def oracle(self, inputs: Inputs) -> Tensor:
        raise NotImplementedError(f"no new run is made of {self.name}")


RETIRED: dict[str, Op] = {Decode.name: Decode()}


def successors(name: str) -> tuple[str, ...]:
    """The ops that took the place of a retired one."""
    op = RETIRED.get(name)
    return tuple(o.name for o in op.successors.values()) if isinstance(op, Decode) else ()


def current_name(name: str, distribution: str) -> str:
    """What a record's op is called today: of a retired one, the successor that its distribution
    became."""
    op = RETIRED.get(name)
    if isinstance(op, Decode) and distribution in op.successors:
        return op.successors[distribution].name
    return name
