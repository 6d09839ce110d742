"""Attention in which query t sees keys lo(t) up to hi(t): what sliding_window and compressed share.

Everything is float64 and goes a key head and a few queries at a time, with only the keys that
these see. Packed sequences are B of very unequal lengths, one of a single token where there are
two or more, B * T tokens together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nsabench.ops import _attention, _draws
from nsabench.ops._contract import Inputs, Shape, Size
from nsabench.ops._draws import Ints

if TYPE_CHECKING:
    from torch import Tensor

DISTRIBUTIONS = ("dense", "packed", *_draws.VALUES)
QUERIES_A_PIECE = 512


class HeadsShape(Shape):
    """HQ query heads on H key heads; head dims D (q, k) and Dv (v; D unless given)."""

    HQ: Size
    H: Size
    D: Size
    Dv: Size

    def check_heads(self) -> None:
        """Raises `ValueError` when the query heads are not shared out evenly."""
        if self.HQ % self.H:
            raise ValueError(f"HQ={self.HQ} query heads cannot share H={self.H} key heads evenly")


def packed_lengths(sequences: int, mean: int, seed: int) -> Ints:
    """Lengths that sum to `sequences * mean`, in an order that depends on the seed."""
    ends = np.cumsum(np.arange(1, sequences + 1)) / (sequences * (sequences + 1) / 2)
    lengths = np.diff(np.rint(ends * sequences * mean).astype(np.int64), prepend=0)
    lengths[-1] += lengths[0] - 1 if sequences > 1 else 0
    lengths[0] = 1 if sequences > 1 else lengths[0]
    return np.random.default_rng(seed).permutation(lengths)


def _pieces(inputs: Inputs, lo: Tensor, hi: Tensor) -> Iterator[tuple[Any, ...]]:
    """Where some queries are in q and their keys in k; their weights [h,n,L]; float64 q, k, v.

    lo, hi: int64 [T], the keys of each query, as far as there are any.
    """
    import torch

    q, k, v = (inputs.tensors[name] for name in ("q", "k", "v"))
    group = q.shape[2] // k.shape[2]
    for b, h in itertools.product(range(k.shape[0]), range(k.shape[2])):
        for t in range(0, q.shape[1], QUERIES_A_PIECE):
            some = slice(t, t + QUERIES_A_PIECE)
            first, end = int(lo[some].min()), min(int(hi[some].max()), k.shape[1])
            keys = (b, slice(first, max(first, end)), h)
            rows = (b, some, slice(h * group, (h + 1) * group))
            key = torch.arange(first, max(first, end), device=q.device)
            keep = (key >= lo[some].unsqueeze(1)) & (key < hi[some].unsqueeze(1))
            qd, kd, vd = q[rows].double().transpose(0, 1), k[keys].double(), v[keys].double()
            p = _attention.weights(qd, kd, inputs.options["sm_scale"], keep)
            yield rows, keys, p, qd, kd, vd


def oracle(inputs: Inputs, lo: Tensor, hi: Tensor) -> Tensor:
    import torch

    q, v = inputs.tensors["q"], inputs.tensors["v"]
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64, device=q.device)
    for rows, _, p, _, _, vd in _pieces(inputs, lo, hi):
        out[rows] = (p @ vd).transpose(0, 1)
    return out


def gradients(inputs: Inputs, grad_out: Tensor, lo: Tensor, hi: Tensor) -> dict[str, Tensor]:
    import torch

    grads = {
        name: torch.zeros_like(inputs.tensors[name], dtype=torch.float64)
        for name in ("q", "k", "v")
    }
    for rows, keys, p, qd, kd, vd in _pieces(inputs, lo, hi):
        do = grad_out[rows].double().transpose(0, 1)
        dq, dk, dv = _attention.gradients(
            p.flatten(0, 1),
            qd.flatten(0, 1),
            kd,
            vd,
            do.flatten(0, 1),
            inputs.options["sm_scale"],
        )
        grads["q"][rows] = dq.view_as(qd).transpose(0, 1)
        grads["k"][keys] += dk
        grads["v"][keys] += dv
    return grads
