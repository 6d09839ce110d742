"""The library's kernels as nsabench candidates (entry point of ``nsabench.implementations``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch

import nsa_kernels
from nsa_kernels import cuda
from nsabench import KernelVariant, Unsupported, implementation

from . import decode as decode

DEVICES = ("cuda", "interpreter")


def _config_of(op: str) -> Callable[..., str]:
    """What the library would launch with on these arguments, for the record."""

    def config(*tensors: torch.Tensor, sm_scale: float, **longest: int) -> str:
        (bound,) = longest.values() or (None,)
        return _shown(asdict(nsa_kernels.chosen_config(op, *tensors, longest=bound)))

    return config


def _shown(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


@implementation(
    op="selection_rows", name="rows_group", devices=DEVICES, config=_config_of("selection_rows")
)
def rows_group(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """All heads of a row in one program, split over the keys when rows are few."""
    return nsa_kernels.selection_rows(q, k, v, sm_scale=sm_scale)[0]


@implementation(op="selection_rows", name="rows_per_head", role="candidate", devices=DEVICES)
def rows_per_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """One program a head, kept for comparison."""
    return nsa_kernels.selection_rows_per_head(q, k, v, sm_scale=sm_scale)[0]


@implementation(
    op="selection_varlen",
    name="varlen_items",
    devices=DEVICES,
    config=_config_of("selection_varlen"),
)
def varlen_items(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> torch.Tensor:
    """Packed keys cut into equal work items, so that one long row does not hold up the rest."""
    found = nsa_kernels.selection_varlen(
        q, k, v, cu_seqlens, sm_scale=sm_scale, max_seqlen=max_seqlen
    )
    return found[0]


@implementation(
    op="selection_ranges",
    name="ranges_in_place",
    devices=DEVICES,
    config=_config_of("selection_ranges"),
)
def ranges_in_place(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float,
    selected_len: int,
) -> torch.Tensor:
    """Spans read where they are, without packing."""
    found = nsa_kernels.selection_ranges(
        q, k, v, ranges, sm_scale=sm_scale, selected_len=selected_len
    )
    return found[0]


def _ahead(op: str) -> Callable[[int], Iterator[KernelVariant]]:
    """The CUDA C++ kernels of an op, to be compiled without a GPU."""

    def variants(capability: int) -> Iterator[KernelVariant]:
        try:
            cuda.check_capability(capability)
        except cuda.Unsupported as why:
            raise Unsupported(str(why)) from why
        for one in cuda.variants(op):
            yield KernelVariant(
                kernel=one.function,
                constants=_shown(one.constants),
                threads=one.threads,
                shared_bytes=one.shared_bytes,
                compiler=cuda.compiler(),
                compile=functools.partial(cuda.cubin, one, capability),
            )

    return variants


def _plan_of(plan: Callable[..., cuda.Plan]) -> Callable[..., str]:
    """How the CUDA C++ kernels would be launched on these arguments, for the record."""

    def config(*tensors: torch.Tensor, sm_scale: float, **longest: int) -> str:
        chosen = plan(*tensors, *longest.values())
        return _shown({**chosen.tile._asdict(), "splits": chosen.splits, "chunk": chosen.chunk})

    return config


@implementation(
    op="selection_rows",
    name="rows_cuda",
    config=_plan_of(cuda.plan_rows),
    devices=("cuda",),
    compile_ahead=_ahead("selection_rows"),
)
def rows_cuda(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """`rows_group` in CUDA C++."""
    try:
        return cuda.selection_rows(q, k, v, sm_scale=sm_scale)[0]
    except cuda.Unsupported as why:
        raise Unsupported(str(why)) from why


@implementation(
    op="selection_ranges",
    name="ranges_cuda",
    config=_plan_of(cuda.plan_ranges),
    devices=("cuda",),
    directions=("forward",),
    compile_ahead=_ahead("selection_ranges"),
)
def ranges_cuda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float,
    selected_len: int,
) -> torch.Tensor:
    """`ranges_in_place` in CUDA C++."""
    try:
        found = cuda.selection_ranges(q, k, v, ranges, sm_scale=sm_scale, selected_len=selected_len)
        return found[0]
    except cuda.Unsupported as why:
        raise Unsupported(str(why)) from why


@implementation(op="selection_blocks", name="blocks", devices=DEVICES)
def blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> torch.Tensor:
    """A block of keys stays with a program, its queries come to it; a plan, partials, a merge."""
    out = nsa_kernels.block_selection_attention(
        q,
        k,
        v,
        block_indices,
        block_size=int(block_size),
        sm_scale=sm_scale,
        cu_seqlens=cu_seqlens,
    )
    assert isinstance(out, torch.Tensor)
    return out


@implementation(
    op="selection_blocks",
    name="blocks_query_major",
    role="baseline",
    devices=DEVICES,
    directions=("forward",),
)
def blocks_query_major(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> torch.Tensor:
    """What public kernels do: a program takes a query and reads every block it chose."""
    return torch.ops.nsa_kernels.block_query_major(
        q, k, v, block_indices, cu_seqlens, int(block_size), sm_scale
    )[0]


@implementation(op="sliding_window", name="band", devices=DEVICES)
def sliding_window(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> torch.Tensor:
    """Tiles of queries over the tiles of keys in their window, masked at its edges only."""
    return nsa_kernels.sliding_window(q, k, v, cu_seqlens, window=window, sm_scale=sm_scale)[0]


@implementation(op="compressed", name="band", devices=DEVICES)
def compressed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    cu_keys: torch.Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
    max_seqlen: int,
) -> torch.Tensor:
    """The same kernels over the compressed keys."""
    return nsa_kernels.compressed_attention(
        q, k, v, cu_seqlens, cu_keys, block=block, stride=stride, sm_scale=sm_scale
    )[0]


@implementation(op="compressed", name="band_with_scores", devices=DEVICES)
def compressed_with_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    cu_keys: torch.Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
    max_seqlen: int,
) -> torch.Tensor:
    """With the block scores that selection needs, which no baseline makes."""
    if cu_seqlens is not None or cu_keys is not None:
        raise Unsupported("block scores are made of sequences that are not packed")
    return nsa_kernels.compressed_attention_with_scores(
        q, k, v, block=block, stride=stride, sm_scale=sm_scale
    )[0]
