"""Each public call under each dtype and condition: what works, and by which sentence it is refused.

A cell is a call, a dtype and a condition. If no refusal below names a cell, it gives what the
formula gives in float64. ``test_conformance.py`` tests cells; ``docs/generate.py`` tabulates them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

DTYPES = ("float16", "bfloat16", "float32", "float64")

CONDITIONS = {
    "plain": "contiguous tensors, one entry of a batch",
    "B > 1": "several entries of a batch",
    "T = 1": "one token, or one row",
    "zero-size": "a batch of no entry, forward and, where there is one, backward",
    "strided": "every other element of a larger tensor, along the last axis",
    "expanded": "the first axis of keys and values expanded, with a stride of 0",
    "negative view": "of the first tensor torch keeps the minus as a bit, as of `z.conj().imag`",
    "packed": "`cu_seqlens`: several sequences, one behind the other",
    "no_grad": "inputs that require a gradient, under `torch.no_grad()`",
    "inference_mode": "under `torch.inference_mode()`",
    "autocast": "under `torch.autocast`, bfloat16: results have q's dtype all the same",
    "Parameter": "the first tensor is an `nn.Parameter`",
    "gradient": "a backward of all floating inputs",
    "checkpoint": "a backward through `torch.utils.checkpoint`, `use_reentrant=False`",
    "second derivative": "a backward with `create_graph=True`",
    "torch.func": "`torch.func.grad` of the first tensor",
    "compile": "`torch.compile`, in one graph but for the layer with a cache, and what is refused",
    "CUDA graph": "captured and replayed, on a GPU",
}


class Call(NamedTuple):
    """Facts about a call. ``speaks_for``: the call that its refusals name instead of it."""

    packs: bool = False
    differentiates: bool = True
    speaks_for: str = ""


CALLS = {
    "selection_rows": Call(differentiates=False),
    "selection_rows_per_head": Call(differentiates=False, speaks_for="selection_rows"),
    "selection_varlen": Call(packs=True, differentiates=False),
    "selection_ranges": Call(),
    "selection_attention": Call(),
    "packed_sdpa": Call(),
    "block_selection_attention": Call(packs=True),
    "plan_blocks": Call(packs=True, speaks_for="block_selection_attention"),
    "sliding_window": Call(packs=True),
    "compressed_attention": Call(packs=True),
    "compressed_attention_with_scores": Call(speaks_for="compressed_attention"),
    "select_blocks": Call(),
    "decode_compressed": Call(differentiates=False, speaks_for="selection_rows"),
    "decode_window": Call(differentiates=False, speaks_for="selection_rows"),
    "decode_selected": Call(speaks_for="selection_ranges"),
    "decode_scores": Call(differentiates=False),
    "decode_step": Call(differentiates=False),
    "decode_step with cache_seqlens": Call(differentiates=False, speaks_for="decode_step"),
    "decode_step with block_table": Call(differentiates=False, speaks_for="decode_step"),
    "gated_sum": Call(differentiates=False),
    "nsa_attention": Call(packs=True, speaks_for="compressed_attention"),
    "nsa_attention with fewer queries": Call(packs=True, speaks_for="compressed_attention"),
    "NSAttention": Call(packs=True, speaks_for="compressed_attention"),
    "NSAttention with a cache": Call(differentiates=False, speaks_for="compressed_attention"),
}
PACKABLE = [name for name, call in CALLS.items() if call.packs]
NO_BACKWARD = [name for name, call in CALLS.items() if not call.differentiates]
WANT_GRADIENTS = ("Parameter", "gradient", "checkpoint", "second derivative")


@dataclass(frozen=True)
class Refusal:
    """Cells that are refused, with the error and its sentence.

    ``sentence``: `…` is any text, ``{call}`` the function, ``{op}`` the call that a refusal names.
    """

    error: str
    sentence: str
    calls: tuple[str, ...] = tuple(CALLS)
    dtypes: tuple[str, ...] = DTYPES
    conditions: tuple[str, ...] = tuple(CONDITIONS)

    def of(self, call: str) -> str:
        """Return the sentence for a call."""
        return self.sentence.replace("{op}", CALLS[call].speaks_for or call).replace(
            "{call}", call.partition(" ")[0]
        )

    def matches(self, call: str, message: str) -> bool:
        """Return whether a message is this sentence."""
        parts = (re.escape(part) for part in self.of(call).split("…"))
        return re.fullmatch(".*".join(parts), message, re.S) is not None


def _but(*without: str) -> tuple[str, ...]:
    return tuple(call for call in CALLS if call not in without)


REFUSALS = (
    Refusal(
        "TypeError",
        "…{call}() got an unexpected keyword argument 'cu_seqlens'",
        _but(*PACKABLE, "NSAttention with a cache"),
        conditions=("packed",),
    ),
    Refusal(
        "ValueError",
        "NSAttention: a cache takes no packed sequences; give it one prompt a row of the batch",
        ("NSAttention with a cache",),
        conditions=("packed",),
    ),
    Refusal(
        "RuntimeError",
        "{op}: torch.func cannot transform it; for gradients use torch.autograd, and instead of "
        "vmap pass arguments with a batch dimension",
        conditions=("torch.func",),
    ),
    Refusal(
        "TypeError",
        "select_blocks: scores must be float32; got …",
        ("select_blocks",),
        ("float16", "bfloat16", "float64"),
    ),
    Refusal(
        "TypeError",
        "gated_sum: branches and gates must be float16, bfloat16 or float32, and all branches "
        "the same; got …",
        ("gated_sum",),
        ("float64",),
    ),
    Refusal(
        "TypeError",
        "{op}: q, k and v must share one dtype of float16, bfloat16, float32; got …",
        _but(
            "selection_attention",
            "packed_sdpa",
            "block_selection_attention",
            "plan_blocks",
            "select_blocks",
            "gated_sum",
        ),
        ("float64",),
    ),
    Refusal(
        "ValueError",
        "nsa_attention: queries behind cached keys have no backward and an input requires a "
        "gradient; call it under torch.no_grad(), or with q, k and v of the same tokens",
        ("nsa_attention with fewer queries",),
        conditions=WANT_GRADIENTS,
    ),
    Refusal(
        "ValueError",
        "nsa_attention: q has … tokens and k …; packed sequences of queries behind cached keys "
        "need cu_seqlens_k",
        ("nsa_attention with fewer queries",),
        conditions=("packed",),
    ),
    Refusal(
        "ValueError",
        "NSAttention: decoding has no backward and x, or a weight, requires a gradient; call "
        "it under torch.no_grad()",
        ("NSAttention with a cache",),
        conditions=WANT_GRADIENTS,
    ),
    Refusal(
        "ValueError",
        "{op}: has no backward and an input requires a gradient; call it under torch.no_grad(), or "
        "use selection_ranges, which has one",
        tuple(NO_BACKWARD),
        conditions=WANT_GRADIENTS,
    ),
    Refusal(
        "ValueError",
        "{op}: batch entries of … must be adjacent in memory; use .contiguous()",
        ("block_selection_attention", "plan_blocks"),
        conditions=("expanded",),
    ),
    Refusal(
        "RuntimeError",
        "selection_attention: has no second derivative; take its gradient without create_graph",
        ("packed_sdpa", "selection_attention"),
        ("float64",),
        ("second derivative",),
    ),
    Refusal(
        "RuntimeError",
        "{op}: has no second derivative; take its gradient without create_graph",
        ("block_selection_attention", "plan_blocks"),
        ("float16", "bfloat16", "float32"),
        ("second derivative",),
    ),
    Refusal(
        "RuntimeError",
        "…: has no second derivative; take its gradient without create_graph",
        _but(*NO_BACKWARD, "select_blocks", "block_selection_attention", "plan_blocks"),
        conditions=("second derivative",),
    ),
)


def refusal(call: str, dtype: str, condition: str) -> Refusal | None:
    """Return why a cell is refused; None: it works."""
    for one in REFUSALS:
        if call in one.calls and dtype in one.dtypes and condition in one.conditions:
            return one
    return None


def cells() -> Iterator[tuple[str, str, str]]:
    """Yield every cell: call, dtype, condition."""
    for call in CALLS:
        for dtype in DTYPES:
            for condition in CONDITIONS:
                yield call, dtype, condition
