"""Attention in which query t sees the keys lo(t) up to hi(t): the base of sliding_window and
compressed. The oracle takes a key head and a few queries at a time, with the keys that they see."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from nsabench.ops import _attention, _draws
from nsabench.ops._attention import Portion
from nsabench.ops._contract import Inputs
from nsabench.ops._sequences import PACKED, SequenceOp

if TYPE_CHECKING:
    from torch import Tensor

QUERIES_AT_A_TIME = 512


class BandedOp(SequenceOp):
    distributions: ClassVar[tuple[str, ...]] = ("dense", PACKED, *_draws.VALUES)

    @abstractmethod
    def bounds(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return lo and hi, int64 [T] each."""

    def oracle(self, inputs: Inputs) -> Tensor:
        return _attention.attend(inputs, self._portions(inputs))

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        return _attention.differentiate(inputs, grad_out, self._portions(inputs))

    def _portions(self, inputs: Inputs) -> Iterator[Portion]:
        import torch

        lo, hi = self.bounds(inputs)
        q, k, v = (inputs.tensors[name] for name in ("q", "k", "v"))
        group = q.shape[2] // k.shape[2]
        for b, h in itertools.product(range(k.shape[0]), range(k.shape[2])):
            for t in range(0, q.shape[1], QUERIES_AT_A_TIME):
                some = slice(t, t + QUERIES_AT_A_TIME)
                first, end = int(lo[some].min()), min(int(hi[some].max()), k.shape[1])
                keys = (b, slice(first, max(first, end)), h)
                queries = (b, some, slice(h * group, (h + 1) * group))
                key = torch.arange(first, max(first, end), device=q.device)
                keep = (key >= lo[some].unsqueeze(1)) & (key < hi[some].unsqueeze(1))
                qd, kd, vd = q[queries].double().transpose(0, 1), k[keys].double(), v[keys].double()
                p = _attention.weights(qd, kd, inputs.options["sm_scale"], keep)
                yield Portion(queries, keys, p, qd, kd, vd)
