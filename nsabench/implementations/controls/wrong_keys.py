"""Controls of the ops whose keys are chosen: each attends to other keys than it is told to.

All are a right implementation that is given other arguments. What changes too little for the bench
to tell it from rounding (one key of thousands) is declined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.baselines import selection_blocks as blocks_baselines
from nsabench.implementations.controls.honest import overlooked
from nsabench.registry import Honest, control

Tensors = tuple[Tensor, ...]
Options = dict[str, Any]
Change = Callable[[Tensors, Options], tuple[Tensors, Options]]


def _control(*ops: str, distributions: Sequence[str] = ()) -> Callable[[Change], Change]:
    """Register a change of the arguments, under its own name, as a control of some ops.

    distributions: where it changes anything, if not everywhere.
    """

    def register(change: Change) -> Change:
        def wrong(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
            others, other = change(tensors, options)
            out: Tensor = honest(*others, **other)
            return unless_right(out, honest, tensors, options)

        control(
            *ops,
            name=change.__name__,
            caught_by="parity",
            distributions=distributions,
            directions=(),
        )(wrong)
        return change

    return register


def unless_right(out: Tensor, honest: Honest, tensors: Tensors, options: dict[str, Any]) -> Tensor:
    """The output. Raises `Unsupported` where it is what the honest one is, but for rounding."""
    with torch.no_grad():
        right = honest(*tensors, **options).float()
    off = (out.detach().float() - right).norm()
    if not bool(off > overlooked(tensors) * right.norm()):
        raise Unsupported("it is right here, or too nearly so to be told from rounding")
    return out


def _with(tensors: Tensors, at: int, other: Tensor) -> Tensors:
    return (*tensors[:at], other, *tensors[at + 1 :])


@_control("selection_varlen", "selection_ranges", "selection_blocks", "sliding_window")
def one_key_short(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Forgets every row's first key: an off-by-one at the start of a span. Of blocks the first that
    is given."""
    if "window" in options:
        return tensors, options | {"window": options["window"] - 1}
    changed = tensors[3].clone()
    if "block_size" in options:
        changed[..., 0] = -1
    elif changed.dim() > 1:
        changed[..., 0] += 1
    else:
        # Row i then begins one key late and row i-1 ends one key late: both are wrong.
        changed[:-1] += (tensors[3][:-1] < tensors[3][-1]).to(changed.dtype)
    return _with(tensors, 3, changed), options


@_control("sliding_window")
def one_key_wide(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Takes `window` for the keys before the query's own."""
    return tensors, options | {"window": options["window"] + 1}


@_control("sliding_window")
def whole_past(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Causal, and no window."""
    return tensors, options | {"window": tensors[0].shape[1]}


@_control("sliding_window", "compressed", "causal_attention", distributions=("packed",))
def packing_ignored(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Takes packed sequences for one."""
    return tensors[:3], options


@_control("causal_attention")
def next_key(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Its mask is off by one: query t sees keys 1 up to t + 1."""
    q, k, v, *rest = tensors
    k, v = (torch.cat([x[:, 1:], x[:, -1:]], 1) for x in (k, v))
    return (q, k, v, *rest), options


@_control("compressed")
def incomplete_key(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Sees one compressed key more, whose last tokens are still to come."""
    return tensors, options | {"block": options["block"] - options["stride"]}


@_control("compressed")
def future_keys(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Sees all compressed keys: nothing is left out."""
    return tensors, options | {"block": -options["stride"] * tensors[1].shape[1]}


@_control("compressed")
def causal_top_left(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """The causal mask of keys that are tokens, `is_causal=True`: query t sees keys 0 to t."""
    return tensors, options | {"block": 1, "stride": 1}


@_control("decode_step", "decode_compressed", "decode_selected", "decode_window", "decode_dense")
def stale_cache(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Reads the cache before the newest key is in it."""
    q, k, v, *rest = tensors
    if k.shape[2] == 1:
        raise Unsupported("without its newest key the cache is empty")
    return (q, k[:, :, :-1], v[:, :, :-1], *rest), options


@_control("decode_step", "decode_selected")
def selection_ignored(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Attends to all blocks where it is to attend to the selected ones."""
    tokens = tensors[1].shape[2]
    if "sizes" in options:
        return tensors, options | {"sizes": replace(options["sizes"], n_selected=tokens)}
    everything = tensors[3].new_tensor([0, tokens]).expand(*tensors[3].shape[:2], 1, 2)
    return _with(tensors, 3, everything), options | {"block_size": tokens}


@_control("decode_step")
def gates_ignored(tensors: Tensors, options: Options) -> tuple[Tensors, Options]:
    """Adds the branches up as they are."""
    return _with(tensors, 5, tensors[5].new_ones(()).expand_as(tensors[5])), options


@control("selection_blocks", name="future_keys", caught_by="parity", directions=())
def _future_keys_of_the_block(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Sees all keys of a query's own block, those after the query too."""
    out = blocks_baselines.attend_masked(*tensors, **options, causal=False)
    return unless_right(out, honest, tensors, options)
