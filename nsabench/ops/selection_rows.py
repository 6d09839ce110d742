"""selection_rows: every row of queries attends to its own dense span of L keys.

q [N,H,D], k [N,L,D], v [N,L,Dv] -> out [N,H,Dv]; K and V of a row are shared by its H heads
(arXiv 2502.11089, section 3.3.2, after the gather). Scale 1/sqrt(D) unless given.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops import _draws
from nsabench.ops._attention import AttentionOp
from nsabench.ops._contract import Inputs, Shape, Size, Work, dv_is_d

if TYPE_CHECKING:
    from torch import Tensor

# Keeps the oracle's float64 copies of K and V under about half a GiB.
ORACLE_CHUNK_ELEMENTS = 1 << 25


class RowsShape(Shape):
    """N rows, H heads a row, head dims D (q, k) and Dv (v; D unless given), L keys a row."""

    N: Size
    H: Size
    D: Size
    Dv: Size
    L: Size

    _dv = model_validator(mode="before")(dv_is_d)


class SelectionRows(AttentionOp):
    name = "selection_rows"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "N=8,H=4,D=32,L=64",
                "N=5,H=3,D=32,L=77",
            ),
            "cuda": (
                "N=1024,H=8,D=128,L=1024",
                "N=1023,H=8,D=128,L=2000",
            ),
        }
    )
    arguments = ("q", "k", "v")
    shape_model = RowsShape
    distributions = ("dense", *_draws.VALUES)

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, RowsShape)
        return shape.L

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        assert isinstance(shape, RowsShape)
        n, h, d, dv, length = shape.N, shape.H, shape.D, shape.Dv, shape.L
        elements = n * (h * d + length * d + length * dv + h * dv)
        return Work(elements * dtype.itemsize, 2 * n * h * length * (d + dv))

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        assert isinstance(shape, RowsShape)
        normal = _draws.normal(dtype, device, seed)
        q, k = normal(shape.N, shape.H, shape.D), normal(shape.N, shape.L, shape.D)
        _draws.shape_values(distribution, q, k)
        return Inputs(
            {"q": q, "k": k, "v": normal(shape.N, shape.L, shape.Dv)},
            {"sm_scale": shape.D**-0.5},
        )

    def oracle(self, inputs: Inputs) -> Tensor:
        import torch

        q, k, v = inputs.tensors["q"], inputs.tensors["k"], inputs.tensors["v"]
        rows = max(1, ORACLE_CHUNK_ELEMENTS // (k.shape[1] * (k.shape[2] + v.shape[2])))
        out = [
            torch.softmax(qi.double() @ ki.double().mT * inputs.options["sm_scale"], -1)
            @ vi.double()
            for qi, ki, vi in zip(q.split(rows), k.split(rows), v.split(rows), strict=True)
        ]
        return torch.cat(out)


OP = SelectionRows()
