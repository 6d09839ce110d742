"""Register the kernels as implementations in nsabench.

The entry point of ``nsabench.implementations`` names this module. Nothing else imports nsabench.
The order of the functions is the order in runs and tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch

import nsa_kernels
from nsabench import KernelVariant, Unsupported, implementation
from nsabench.ops import DecodeSizes

from ..selection import cuda


def _shown(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _config_of(op: str) -> Callable[..., str]:
    """Return a function that describes, for the record, the configuration of a launch of ``op``."""

    def config(*tensors: torch.Tensor, sm_scale: float, **longest: int) -> str:
        (bound,) = longest.values() or (None,)
        return _shown(asdict(nsa_kernels.chosen_config(op, *tensors, longest=bound)))

    return config


@implementation(
    op="selection_rows",
    name="rows_group",
    compiled_by="triton",
    config=_config_of("selection_rows"),
)
def rows_group(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """Run up to 64 heads of a row in one program, and split the keys if there are few rows."""
    return nsa_kernels.selection_rows(q, k, v, sm_scale=sm_scale)[0]


@implementation(op="selection_rows", name="rows_per_head", compiled_by="triton")
def rows_per_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """Run one program for each head. This kernel is kept for comparison."""
    return nsa_kernels.selection_rows_per_head(q, k, v, sm_scale=sm_scale)[0]


@implementation(
    op="selection_varlen",
    name="varlen_items",
    compiled_by="triton",
    config=_config_of("selection_varlen"),
)
def varlen_items(*tensors: torch.Tensor, sm_scale: float, max_seqlen: int) -> torch.Tensor:
    """Cut packed keys into equal work items, so that one long row does not delay the rest."""
    return nsa_kernels.selection_varlen(*tensors, sm_scale=sm_scale, max_seqlen=max_seqlen)[0]


@implementation(
    op="selection_ranges",
    name="ranges_in_place",
    compiled_by="triton",
    config=_config_of("selection_ranges"),
)
def ranges_in_place(*tensors: torch.Tensor, sm_scale: float, selected_len: int) -> torch.Tensor:
    """Read spans in place, without packing."""
    return nsa_kernels.selection_ranges(*tensors, sm_scale=sm_scale, selected_len=selected_len)[0]


def _ahead(op: str) -> Callable[[int], Iterator[KernelVariant]]:
    """Return a function that yields an op's CUDA C++ kernels, to compile them without a GPU."""

    def variants(capability: int) -> Iterator[KernelVariant]:
        try:
            cuda.check_capability(capability)
        except cuda.Unsupported as why:
            raise Unsupported(str(why)) from why
        for variant in cuda.variants(op):
            yield KernelVariant(
                kernel=variant.function,
                constants=_shown(variant.constants),
                threads=variant.threads,
                shared_bytes=variant.shared_bytes,
                compiler=cuda.compiler(),
                compile=functools.partial(cuda.cubin, variant, capability),
            )

    return variants


def _plan_of(plan: Callable[..., cuda.Plan]) -> Callable[..., str]:
    """Return a function that describes, for the record, how a CUDA C++ kernel is launched."""

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
    """Compute what `rows_group` does, in CUDA C++."""
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
def ranges_cuda(*tensors: torch.Tensor, sm_scale: float, selected_len: int) -> torch.Tensor:
    """Compute what `ranges_in_place` does, in CUDA C++."""
    try:
        return cuda.selection_ranges(*tensors, sm_scale=sm_scale, selected_len=selected_len)[0]
    except cuda.Unsupported as why:
        raise Unsupported(str(why)) from why


@implementation(op="selection_blocks", name="blocks", compiled_by="triton")
def blocks(*tensors: torch.Tensor, sm_scale: float, block_size: int) -> torch.Tensor:
    """Give each program a block of keys and queries that chose it, then merge partial results."""
    *four, cu_seqlens = tensors if len(tensors) == 5 else (*tensors, None)
    out: torch.Tensor = nsa_kernels.block_selection_attention(
        *four, block_size=int(block_size), sm_scale=sm_scale, cu_seqlens=cu_seqlens
    )
    return out


@implementation(
    op="selection_blocks",
    name="blocks_query_major",
    role="baseline",
    compiled_by="triton",
    directions=("forward",),
)
def blocks_query_major(*tensors: torch.Tensor, sm_scale: float, block_size: int) -> torch.Tensor:
    """Give each program one query and key head, and read every block that these chose."""
    five = tensors if len(tensors) == 5 else (*tensors, None)
    return torch.ops.nsa_kernels.block_query_major(*five, int(block_size), sm_scale)[0]


@implementation(op="sliding_window", name="band", compiled_by="triton")
def sliding_window(
    *tensors: torch.Tensor, window: int, sm_scale: float, max_seqlen: int
) -> torch.Tensor:
    """Attend tile by tile, and mask only the tiles at the edges of the window."""
    return nsa_kernels.sliding_window(*tensors, window=window, sm_scale=sm_scale)[0]


@implementation(op="compressed", name="band", compiled_by="triton")
def compressed(
    *tensors: torch.Tensor, block: int, stride: int, sm_scale: float, max_seqlen: int
) -> torch.Tensor:
    sizes = {"block": block, "stride": stride}
    return nsa_kernels.compressed_attention(*tensors, **sizes, sm_scale=sm_scale)[0]


@implementation(op="compressed", name="band_with_scores", compiled_by="triton")
def compressed_with_scores(
    *tensors: torch.Tensor, block: int, stride: int, sm_scale: float, max_seqlen: int
) -> torch.Tensor:
    """Compute what `band` does, and the block scores for selection. No baseline computes scores."""
    if len(tensors) > 3:
        raise Unsupported("block scores cannot be computed for packed sequences")
    sizes = {"block": block, "stride": stride}
    return nsa_kernels.compressed_attention_with_scores(*tensors, **sizes, sm_scale=sm_scale)[0]


def _reads(**branches: tuple[int, int]) -> str:
    """Describe how many keys a key head reads in each branch, and how many are expected. These are
    all complete compressed keys, n blocks (the last one up to the token), and the window."""
    if len(branches) > 1:
        counted, expected = (sum(counts) for counts in zip(*branches.values(), strict=True))
        branches["total"] = (counted, expected)
    return " ".join(
        f"reads_{name}={counted} expected={expected}"
        for name, (counted, expected) in branches.items()
    )


def _selected_counts(ranges: torch.Tensor, tokens: int, block_size: int) -> tuple[int, int]:
    counted = ranges.clamp(0, tokens).diff(dim=-1).clamp(min=0).sum((2, 3))
    whole = min(ranges.shape[2] * block_size, -(-tokens // block_size) * block_size)
    return int(counted.max()), whole - -tokens % block_size


def _selected_reads(*tensors: torch.Tensor, block_size: int, sm_scale: float) -> str:
    _, k, _, ranges = tensors
    return _reads(sel=_selected_counts(ranges, k.shape[2], block_size))


def _window_counts(k: torch.Tensor, window: int) -> tuple[int, int]:
    tokens = k.shape[2]
    return k[:, :, max(tokens - window, 0) :].shape[2], min(window, tokens)


def _window_reads(*tensors: torch.Tensor, window: int, sm_scale: float) -> str:
    return _reads(win=_window_counts(tensors[1], window))


def _step_reads(*tensors: torch.Tensor, sizes: DecodeSizes, sm_scale: float) -> str:
    q, k, _, k_cmp, v_cmp, _ = tensors
    tokens = k.shape[2]
    _, lse = nsa_kernels.decode_compressed(q, k_cmp, v_cmp, sm_scale=sm_scale)
    n_blocks = -(-tokens // sizes.block_size)
    overlap = {"block": sizes.block, "stride": sizes.stride, "block_size": sizes.block_size}
    scores = nsa_kernels.decode_scores(q, k_cmp, lse, n_blocks, **overlap, sm_scale=sm_scale)
    ranges = nsa_kernels.select_blocks(
        scores.unsqueeze(1),
        sizes.n_selected,
        block_size=sizes.block_size,
        first_position=tokens - 1,
    )[:, 0]
    complete = max(0, (tokens - sizes.block) // sizes.stride + 1)
    return _reads(
        cmp=(k_cmp.shape[2], complete),
        sel=_selected_counts(ranges, tokens, sizes.block_size),
        win=_window_counts(k, sizes.window),
    )


@implementation(op="decode_compressed", name="nsa_decode", compiled_by="triton")
def decode_compressed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """Run `selection_rows` on the compressed keys in place."""
    return nsa_kernels.decode_compressed(q, k, v, sm_scale=sm_scale)[0]


@implementation(
    op="decode_selected", name="nsa_decode", compiled_by="triton", config=_selected_reads
)
def decode_selected(*tensors: torch.Tensor, block_size: int, sm_scale: float) -> torch.Tensor:
    """Run `selection_ranges` on the cache in place."""
    most = tensors[3].shape[2] * block_size
    return nsa_kernels.decode_selected(*tensors, selected_len=most, sm_scale=sm_scale)[0]


@implementation(op="decode_window", name="nsa_decode", compiled_by="triton", config=_window_reads)
def decode_window(*tensors: torch.Tensor, window: int, sm_scale: float) -> torch.Tensor:
    """Run `selection_rows` on the end of the cache in place."""
    return nsa_kernels.decode_window(*tensors, window=window, sm_scale=sm_scale)[0]


@implementation(op="decode_dense", name="nsa_decode", compiled_by="triton")
def decode_dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """Run `selection_rows` on the whole cache."""
    return nsa_kernels.decode_window(q, k, v, window=k.shape[2], sm_scale=sm_scale)[0]


@implementation(op="decode_step", name="nsa_decode", compiled_by="triton", config=_step_reads)
def decode_step(*tensors: torch.Tensor, sizes: DecodeSizes, sm_scale: float) -> torch.Tensor:
    """Run all branches on the caches in place, and select blocks on the device."""
    return nsa_kernels.decode_step(*tensors, **asdict(sizes), sm_scale=sm_scale)


@implementation(op="nsa_attention", name="nsa", compiled_by="triton")
def nsa(*tensors: torch.Tensor, sm_scale: float, max_seqlen: int, **sizes: int) -> torch.Tensor:
    """Run compression, block scores, top-n, blocks, the window and the gated sum in sequence."""
    *four, cu_seqlens = tensors if len(tensors) == 5 else (*tensors, None)
    return nsa_kernels.nsa_attention(*four, **sizes, sm_scale=sm_scale, cu_seqlens=cu_seqlens)
