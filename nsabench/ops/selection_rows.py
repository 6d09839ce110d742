"""selection_rows: every row of queries attends to its own dense span of L keys.

q [N,H,D], k [N,L,D], v [N,L,Dv] -> out [N,H,Dv]. The H heads of a row share its K and V (arXiv
2502.11089, section 3.3.2, after the gather). The scale is 1/sqrt(D) unless given.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from nsabench.ops._attention import VALUES, AttentionOp, AttentionPart, AttentionShape, Axes, attend
from nsabench.ops._op import Inputs, Size, by_device

# Limits the oracle's float64 copies of K and V to a quarter of a GiB, if D and Dv are equal.
ORACLE_CHUNK_ELEMENTS = 1 << 25


class RowsShape(AttentionShape):
    """N rows, H heads a row, head dims D (q, k) and Dv (v; D unless given), L keys a row."""

    N: Size
    H: Size
    D: Size
    Dv: Size
    L: Size


class SelectionRows(AttentionOp):
    name = "selection_rows"
    check_shapes = by_device(
        cpu=("N=8,H=4,D=32,L=64", "N=5,H=3,D=32,L=77"),
        cuda=("N=1024,H=8,D=128,L=1024", "N=1023,H=8,D=128,L=2000"),
    )
    arguments = ("q", "k", "v")
    shape_model = RowsShape
    distributions = ("dense", *VALUES)

    def axes(self, shape: RowsShape, distribution: str, seed: int) -> Axes:
        return (shape.N, shape.H), (shape.N, shape.L)

    def count(self, shape: RowsShape, distribution: str, seed: int) -> tuple[int, int, int]:
        return shape.N * shape.H * shape.L, shape.N * shape.L, 0

    def parts(self, inputs: Inputs) -> Iterator[AttentionPart]:
        count, keys, width = inputs.tensors["k"].shape
        step = max(1, ORACLE_CHUNK_ELEMENTS // (2 * keys * width))
        for n in range(0, count, step):
            some = slice(n, n + step)
            yield AttentionPart(some, some, partial(attend, scale=inputs.options["sm_scale"]))


OP = SelectionRows()
