"""The speeds that libraries state themselves. A site shows them beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date

from nsabench.packages.catalogue import FLA, FLASH_NSA, FSA, NSA_TRITON


@dataclass(frozen=True)
class Claim:
    """A statement of a library about one shape, or a summary over many.

    gpu: empty if it is not stated. shape: sizes by the names of the op; empty in a summary. ms,
    beside_ms: the time of the library and of `beside`. times: in a summary, the highest and the
    mean ratio. site, made: the address and the date of the statement.
    """

    package: str
    op: str
    direction: str
    gpu: str
    shape: Mapping[str, int]
    beside: str
    site: str
    made: date
    ms: float | None = None
    beside_ms: float | None = None
    times: tuple[float, float] | None = None
    conditions: str = ""

    @property
    def said(self) -> str:
        where = f" on {self.gpu}" if self.gpu else ", the GPU not named"
        more = f"; {self.conditions}" if self.conditions else ""
        if self.times is not None:
            most, mean = self.times
            return (
                f"up to {most:g} times, and on average {mean:g} times, as fast as {self.beside}"
                f"{where}{more}"
            )
        sizes = " ".join(f"{name}={size}" for name, size in self.shape.items())
        return f"{self.ms:.4g} ms, {self.beside} {self.beside_ms:.4g} ms, at {sizes}{where}{more}"


def _rows(claim: Claim, times: Mapping[int, tuple[float, float]]) -> tuple[Claim, ...]:
    """Return a claim for each T. times: by T, the time of the library and of the other, in ms."""
    return tuple(
        replace(claim, shape={"T": t, **claim.shape}, ms=ms, beside_ms=other)
        for t, (ms, other) in times.items()
    )


# Both projects state the heads. A table over the length alone is of one sequence.
_HEADS = {"B": 1, "HQ": 64, "H": 4, "D": 128}
_NSA_TRITON = Claim(
    package=NSA_TRITON.name,
    op="selection_blocks",
    direction="forward",
    gpu="an H100",
    shape={**_HEADS, "S": 16, "block_size": 64},
    beside="FlashAttention",
    site="https://github.com/XunhaoLai/native-sparse-attention-triton#benchmarks",
    made=date(2025, 3, 31),
)
_FLA = Claim(
    package=FLA.name,
    op="selection_blocks",
    direction="forward",
    gpu="",
    shape={"B": 4, "HQ": 64, "H": 4, "D": 128, "S": 16},
    beside="FlashAttention",
    site="https://github.com/fla-org/native-sparse-attention#benchmarks",
    made=date(2025, 3, 15),
    conditions="1 to 16 blocks a query and a window of 64",
)
_FSA = Claim(
    package=FSA.name,
    op="selection_blocks",
    direction="forward",
    gpu="an H20 and an H200",
    shape={},
    beside="the Triton kernels of NSA",
    site="https://arxiv.org/abs/2508.18224",
    made=date(2025, 8, 25),
    times=(3.5, 1.6),
    conditions="kernels of the selection, forward and backward, in the paper that its README names",
)
_FLASH_NSA = Claim(
    package=FLASH_NSA.name,
    op="nsa_attention",
    direction="forward",
    gpu="an H800",
    shape={**_HEADS, "block": 32, "stride": 16, "block_size": 64, "n_selected": 16},
    beside="FlashAttention-3",
    site="https://github.com/mdy666/Scalable-Flash-Native-Sparse-Attention#benchmark",
    made=date(2025, 10, 27),
)

CLAIMS: tuple[Claim, ...] = (
    *_rows(_NSA_TRITON, {8192: (3.39688, 3.043744), 65536: (24.511856, 187.234375)}),
    *_rows(
        replace(_NSA_TRITON, direction="backward"),
        {8192: (3.947456, 9.02976), 65536: (33.818878, 541.053894)},
    ),
    *_rows(_FLA, {8192: (9.953824, 13.464992), 16384: (20.164879, 53.633568)}),
    *_rows(
        replace(
            _FLA,
            direction="backward",
            conditions=f"forward and backward together, {_FLA.conditions}",
        ),
        {8192: (49.575199, 52.566914), 16384: (116.29792, 204.353607)},
    ),
    _FSA,
    replace(_FSA, direction="backward"),
    *_rows(
        _FLASH_NSA,
        {
            8192: (2.629667, 1.693475),
            16384: (5.659996, 6.690040),
            32768: (13.236773, 26.711466),
            65536: (34.162239, 105.494339),
        },
    ),
    *_rows(
        replace(_FLASH_NSA, direction="backward"),
        {
            8192: (5.570735, 5.013627),
            16384: (12.322220, 18.735635),
            32768: (28.959669, 74.799133),
            65536: (73.688576, 292.343994),
        },
    ),
)


def of(op: str, direction: str) -> list[Claim]:
    """Return the claims about an op in a direction."""
    return [c for c in CLAIMS if (c.op, c.direction) == (op, direction)]
