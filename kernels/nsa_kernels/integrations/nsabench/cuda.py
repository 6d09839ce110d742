"""``selection_rows`` and ``selection_ranges`` in CUDA C++, as nsabench candidates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from nsabench import KernelVariant, Unsupported, implementation

from ...selection import cuda
from .record import shown


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
                constants=shown(variant.constants),
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
        return shown({**chosen.tile._asdict(), "splits": chosen.splits, "chunk": chosen.chunk})

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
def ranges_cuda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float,
    selected_len: int,
) -> torch.Tensor:
    """Compute what `ranges_in_place` does, in CUDA C++."""
    try:
        out = cuda.selection_ranges(q, k, v, ranges, sm_scale=sm_scale, selected_len=selected_len)
        return out[0]
    except cuda.Unsupported as why:
        raise Unsupported(str(why)) from why
