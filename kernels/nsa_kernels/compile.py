"""python -m nsa_kernels.compile --heads 64/4 --dtype bf16: fill Triton's cache before a job.

This module calls a prefill, a training step and a decode step of each length. It compiles the
kernels of these calls on all cores, and launches none of them. Triton keeps the machine code in its
own cache (``TRITON_CACHE_DIR``), where later processes find it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from .attention import decode_step, nsa_attention

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
LENGTHS = (1, 64, 1024, 4096, 16384)
"""Numbers of tokens of the calls. Together, they need every variant that any number needs."""
SIZES = {"block": 32, "stride": 16, "block_size": 64, "n_selected": 16, "window": 512}


class Compiler:
    """Compile each variant of a kernel once, in several threads. The threads run in parallel, since
    Triton's passes and the assembler do not hold Python's lock."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._variants: dict[tuple[Any, ...], Future[Any]] = {}

    @contextmanager
    def instead_of_launches(self) -> Iterator[None]:
        """In the ``with`` block, compile each kernel that would be launched, and launch none."""
        run = JITFunction.run

        def compile_only(
            kernel: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any
        ) -> None:
            given = (*args, *options.items())
            key = (kernel, *(_specialisation(x) for x in given))
            if key not in self._variants:
                compiled = partial(run, kernel, *args, grid=grid, warmup=True, **options)
                self._variants[key] = self._pool.submit(compiled)

        JITFunction.run = compile_only
        try:
            yield
        finally:
            JITFunction.run = run

    def finish(self) -> int:
        """Wait for all variants, and return their number. Raise what the compiler raises."""
        for variant in self._variants.values():
            variant.result()
        self._pool.shutdown()
        return len(self._variants)


def _specialisation(x: Any) -> Any:
    """Return the properties of an argument that decide the variant, such as a tensor's dtype."""
    if isinstance(x, torch.Tensor):
        return x.dtype, x.data_ptr() % 16
    if type(x) is int:
        return x == 1, x % 16 == 0, x >= 1 << 31
    if hasattr(x, "block_shape"):
        return x.base.dtype, tuple(x.block_shape)
    return type(x) if type(x) is float else x


def calls(
    heads: tuple[int, int],
    head_dim: int,
    dtype: torch.dtype,
    lengths: Sequence[int],
    packed: bool,
    sizes: dict[str, int],
) -> Iterator[Callable[[], Any]]:
    """Yield functions that call a prefill, a training step and a decode step of each length."""
    hq, h = heads

    def empty(*size: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="cuda")

    def attend(tokens: int, step: bool) -> None:
        q, k, v = (empty(1, tokens, n, head_dim).requires_grad_(step) for n in (hq, h, h))
        gates = empty(1, tokens, hq, 3).requires_grad_(step)
        cu_seqlens = empty(2, dtype=torch.int32) if packed else None
        out = nsa_attention(q, k, v, gates, **sizes, cu_seqlens=cu_seqlens)
        if step:
            out.backward(torch.empty_like(out))

    def decode(tokens: int) -> None:
        keys = max(0, (tokens - sizes["block"]) // sizes["stride"] + 1)
        k, v, k_cmp, v_cmp = (empty(1, h, n, head_dim) for n in (tokens, tokens, keys, keys))
        lengths = empty(1, dtype=torch.int32)
        q, gates = empty(1, hq, head_dim), empty(1, hq, 3)
        decode_step(q, k, v, k_cmp, v_cmp, gates, lengths, **sizes)

    for tokens in lengths:
        yield lambda n=tokens: attend(n, False)  # type: ignore[misc]
        yield lambda n=tokens: attend(n, True)  # type: ignore[misc]
        yield lambda n=tokens: decode(n)  # type: ignore[misc]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile the kernels that the options describe, for the current GPU."""
    parser = argparse.ArgumentParser(
        "nsa_kernels.compile", description=(__doc__ or "").split(":")[1]
    )
    parser.add_argument("--heads", metavar="HQ/H", default="64/4", help="query and key heads")
    parser.add_argument("--head-dim", metavar="N", type=int, default=128)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--lengths", metavar="N", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--packed", action="store_true", help="sequences packed by cu_seqlens")
    parser.add_argument("--jobs", metavar="N", type=int, default=os.cpu_count(), help="threads")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="N", type=int, default=size)
    options = parser.parse_args(arguments)
    heads = options.heads.split("/")
    if len(heads) != 2 or not all(x.isdigit() for x in heads):
        parser.error(f"--heads takes query heads/key heads, such as 64/4; got {options.heads!r}")
    if not torch.cuda.is_available():
        sys.exit("nsa_kernels.compile: no CUDA device was found; run it on the job's GPU model")
    began = time.monotonic()
    compiler = Compiler(options.jobs)
    sizes = {name: getattr(options, name) for name in SIZES}
    shape = ((int(heads[0]), int(heads[1])), options.head_dim, DTYPES[options.dtype])
    with compiler.instead_of_launches():
        for call in calls(*shape, options.lengths, options.packed, sizes):
            call()
    count = compiler.finish()
    print(f"{count} variants in {time.monotonic() - began:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main()
