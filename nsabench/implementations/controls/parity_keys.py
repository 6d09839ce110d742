"""Controls that attend to the wrong keys, or combine the branches of NSA wrongly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.controls._shared import Options, Tensors, unless_right
from nsabench.registry import Honest, control

Change = Callable[[Tensors, Options], tuple[Tensors, Options]]

NSA = ("nsa_attention", "nsa_without_window")
GATES = 3  # the index of the gates among the arguments of NSA


def _control(*ops: str, distributions: Sequence[str] = ()) -> Callable[[Change], Change]:

    def register(change: Change) -> Change:
        def wrong(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
            others, other = change(tensors, options)
            out = honest(*others, **other)
            return unless_right(out, honest, tensors, options)

        about: dict[str, Any] = {"name": change.__name__, "distributions": distributions}
        control(*ops, caught_by="parity", directions=(), **about)(wrong)
        return change

    return register


def _with(tensors: Tensors, at: int, other: Tensor) -> Tensors:
    return (*tensors[:at], other, *tensors[at + 1 :])


@_control("selection_varlen", "selection_ranges", "selection_blocks", "sliding_window")
def one_key_short(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Misses the first key of every row or span, or the first selected block."""
    if "window" in options:
        return tensors, options | {"window": options["window"] - 1}
    changed = tensors[3].clone()
    if "block_size" in options:
        changed[..., 0] = -1
    elif changed.dim() > 1:
        changed[..., 0] += 1
    else:
        # Row i then starts one key late, and row i-1 ends one key late: both are wrong.
        changed[:-1] += (tensors[3][:-1] < tensors[3][-1]).to(changed.dtype)
    return _with(tensors, 3, changed), options


@_control("sliding_window", "compressed", "causal_attention", distributions=("packed",))
def packing_ignored(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    return tensors[:3], options


@_control("causal_attention")
def next_key(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Is off by one: query t sees keys 1 to t + 1."""
    q, k, v, *rest = tensors
    k, v = (torch.cat([x[:, 1:], x[:, -1:]], 1) for x in (k, v))
    return (q, k, v, *rest), options


@_control("compressed")
def incomplete_key(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    return tensors, options | {"block": options["block"] - options["stride"]}


@_control("decode_step", "decode_compressed", "decode_selected", "decode_window", "decode_dense")
def stale_cache(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Reads the cache before the newest key is in it."""
    q, k, v, *rest = tensors
    if k.shape[2] == 1:
        raise Unsupported("without its newest key the cache is empty")
    return (q, k[:, :, :-1], v[:, :, :-1], *rest), options


@_control(*NSA)
def gates_all_one(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    gates = tensors[GATES]
    return _with(tensors, GATES, gates * 0 + torch.ones_like(gates)), options


@_control("nsa_attention")
def window_one_short(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    if options["window"] == 1:
        raise Unsupported("the window is a single key")
    return tensors, options | {"window": options["window"] - 1}
