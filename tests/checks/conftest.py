"""Make records as of a run of `selection_rows`, with any field overridden."""

import pytest

from nsabench import ops
from nsabench.model.case import Tolerances
from nsabench.model.measurement import Samples
from nsabench.model.vocabulary import DType, Role
from tests.runs import record


@pytest.fixture
def make_row():
    op = ops.get("selection_rows")

    def make(
        name="mine",
        role="candidate",
        median_ms=1.0,
        *,
        N=1024,
        H=8,
        D=128,
        L=1024,
        dtype="float16",
        n_samples=20,
        escaped_share=0.0,
        gap_hidden_share=1.0,
        rel_l2_ratio=1.0,
        **fields,
    ):
        """escaped_share, gap_hidden_share: shares of the samples."""
        shape = op.shape_model.model_validate({"N": N, "H": H, "D": D, "L": L})
        work = op.work(shape, DType(dtype), "dense", 0)
        count = 0 if median_ms is None else n_samples
        samples = Samples(
            round=list(range(count)),
            time_ms=[median_ms or 1.0] * count,
            escaped_ms=[float(i < escaped_share * count) for i in range(count)],
            gap_hidden=[i < gap_hidden_share * count for i in range(count)],
        )
        defaults = {
            "case_id": f"{dtype}-{N}-{H}-{D}-{L}",
            "dtype": DType(dtype),
            "distribution": "",
            "shape": shape.model_dump(),
            "length": L,
            "bytes_min": work.bytes_min,
            "flops": work.flops,
            "attempt": 0,
            "mae": 1e-5,
            "rel_l2": 3e-4,
            "tolerances": Tolerances(rel_l2_ratio=rel_l2_ratio),
        }
        return record(name, Role(role), samples=samples, **{**defaults, **fields})

    return make
