"""Synthetic records: what a run of `selection_rows` would give, with any field overridden."""

from collections.abc import Callable
from typing import Any

import pytest

from nsabench import ops
from nsabench.checks import Row
from nsabench.model.vocabulary import DType, Role, Status

MakeRow = Callable[..., Row]


@pytest.fixture
def make_row() -> MakeRow:
    op = ops.get("selection_rows")

    def make(
        name: str = "mine",
        role: str = "candidate",
        median_ms: float | None = 1.0,
        *,
        N: int = 1024,
        H: int = 8,
        D: int = 128,
        L: int = 1024,
        dtype: str = "float16",
        **fields: Any,
    ) -> Row:
        shape = op.shape_model.model_validate({"N": N, "H": H, "D": D, "L": L})
        work = op.work(shape, DType(dtype), "dense", 0)
        defaults = {
            "case_id": f"{dtype}-{N}-{H}-{D}-{L}",
            "op": op.name,
            "implementation": name,
            "role": Role(role),
            "status": Status.OK,
            "dtype": DType(dtype),
            "shape": shape.model_dump(),
            "length": L,
            "bytes_min": work.bytes_min,
            "flops": work.flops,
            "mae": 1e-5,
            "rel_l2": 3e-4,
            "median_ms": median_ms,
        }
        return Row(**{**defaults, **fields})

    return make
