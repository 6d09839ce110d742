"""Launch configurations: a pure function of (device, shape class), never of a measurement.

A table of rules instead of run-time autotuning keeps the first call free of trials and two runs on
one GPU bit-identical. The rules come from sweeps on an H200 (docs/lab/rows.md); what another device
changes, its number of multiprocessors and its shared memory, enters the rules as numbers. Where
``python -m nsa_kernels.tune`` has been run, the tiles that it wrote down come before the rules'.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch

from ..jit.compat import HAS_PDL
from ..launch.checks import cdiv, next_power_of_2, require
from ..launch.tuned import Tile, tuned_tiles


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel is launched.

    ``block_h`` heads and ``block_l`` keys a tile; ``splits`` programs share a row, each taking
    ``chunk`` keys (0: the kernel derives it on the device); ``head_tiles`` programs cover H. In
    ``selection_varlen`` ``splits`` is 1 where no row is shared, else 0, by work items of ``chunk``.
    ``late`` asks for the first keys before q has arrived (``tiles.late``). ``tuned``: the tile is
    from the file that ``nsa_kernels.tune`` wrote, where it stands under ``shape_class``.
    """

    block_h: int
    block_l: int
    splits: int
    chunk: int
    head_tiles: int
    num_warps: int
    num_stages: int
    late: bool = False
    tuned: bool = False
    shape_class: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """What the rules need to know of a GPU: multiprocessors, shared memory a program may use."""

    processors: int
    shared_bytes: int


_CPU = Device(processors=4, shared_bytes=99 * 1024)


@functools.lru_cache(maxsize=64)
def device_limits(device: torch.device) -> Device:
    """Limits of a device, read once; the interpreter (CPU) is given small ones."""
    if device.type != "cuda":
        return _CPU
    props = torch.cuda.get_device_properties(device)
    # torch < 2.6 does not report the opt-in limit; the smallest of all supported GPUs is safe.
    shared = int(getattr(props, "shared_memory_per_block_optin", 99 * 1024))
    return Device(processors=props.multi_processor_count, shared_bytes=shared)


@functools.lru_cache(maxsize=64)
def dependent_launch(device: torch.device) -> bool:
    """Whether a launch can start its programs before the one it depends on has ended."""
    return HAS_PDL and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_options(pdl: bool) -> dict[str, bool]:
    """Options of a dependent launch; Tritons that cannot make one do not know the option."""
    return {"launch_pdl": True} if pdl else {}


def check_heads(op: str, config: Config, h: int) -> None:
    """Raises ValueError for a given config that leaves out some of ``h`` heads."""
    require(
        config.head_tiles * config.block_h >= h,
        f"{op}: the config is one for up to {config.head_tiles * config.block_h} heads, "
        f"q has {h}; take chosen_config of these tensors, or leave it out",
    )


def check_chunks(op: str, splits: int, chunk: int, tile: int, length: int) -> None:
    """Raises ValueError for given shares of a row that leave out, or repeat, some of its keys."""
    require(
        chunk >= tile > 0 and chunk % tile == 0 and splits == max(cdiv(length, chunk), 1),
        f"{op}: {splits} shares of {chunk} keys, in tiles of {tile}, are not for rows of {length} "
        "keys; choose config or plan from these tensors, or leave it out",
    )


def shared_estimate(
    block_h: int, block_l: int, block_d: int, block_dv: int, itemsize: int, stages: int
) -> int:
    """Upper estimate of a program's shared memory in bytes: pipelined K and V tiles, q and p."""
    tile = block_l * (block_d + block_dv) * itemsize
    return tile * max(stages, 1) + block_h * (block_d + block_l + block_dv) * max(itemsize, 4)


def _fit(
    h: int, d: int, dv: int, itemsize: int, device: Device, tile: Tile
) -> tuple[int, int, int, int]:
    """(block_h, block_l, num_warps, num_stages): ``tile`` shrunk until it fits the device."""
    block_l, warps, stages = tile
    block_h = min(max(16, next_power_of_2(h)), 64)
    block_d, block_dv = next_power_of_2(d), next_power_of_2(dv)
    widest = max(block_d, block_dv)
    if widest > 128:
        block_l, warps = max(block_l // 2, 16), max(warps, 4)
    if block_h > 16:
        warps = max(warps, 4)
    if itemsize == 4:
        # IEEE fp32 products run on the plain cores with whole operands in registers.
        block_h, block_l, warps, stages = 16, min(block_l, 32), 4, min(stages, 2)
    while (
        shared_estimate(block_h, block_l, block_d, block_dv, itemsize, stages) > device.shared_bytes
    ):
        if stages > 2:
            stages -= 1
        elif block_l > 16:
            block_l //= 2
        elif block_h > 16:
            block_h //= 2
        else:
            break
    return block_h, block_l, warps, stages


RULE = "rule"
"""Asks for the rule's tile, whatever was tuned."""

Given = Tile | Literal["rule"] | None
"""A tile, or RULE; None: the tuned one, else the rule's."""


def _crowd(programs: int, processors: int) -> str:
    """How many programs a multiprocessor has: some (up to four), or many."""
    return "some" if programs <= 4 * processors else "many"


def _class(op: str, crowd: str, narrow: bool, length: int) -> str:
    """The name of a shape class: what a tile is chosen by. ``length``: keys of a program, about."""
    reach = min(max(next_power_of_2(length), 64), 2048)
    return f"{op}-{crowd}-{'narrow' if narrow else 'wide'}-{reach}"


def _tile(
    name: str, rule: Tile, itemsize: int, device: torch.device, given: Given
) -> tuple[Tile, bool]:
    """The tile given, else the tuned one of the class, else the rule's; whether it was tuned."""
    if isinstance(given, tuple):
        return given, False
    found = tuned_tiles(device).get(name) if given is None and itemsize == 2 else None
    return (rule, False) if found is None else (found, True)


def _narrow(d: int, dv: int) -> bool:
    return max(d, dv) <= 64


def _rows_tile(programs: int, length: int, narrow: bool, processors: int) -> Tile:
    """The tile of ``rows_group`` when no row is split."""
    many = programs > 4 * processors
    if length <= 64:
        return max(16, next_power_of_2(length)), 4, 1
    if length <= 128 and (narrow or not many):
        return 128, 4, 1
    if programs <= processors:
        return 128, 4, 3
    if not many:
        two = programs <= 2 * processors
        if narrow:
            return (128, 4, 3) if two and length > 256 else (64, 4, 3)
        return (64, 2, 3) if two else (64, 4, 2)
    if narrow:
        return (32, 1, 3) if length <= 512 else (128, 2, 2)
    if length <= 256:
        return 32, 1, 2
    return (64, 4, 2) if length <= 512 else (128, 4, 2)


@functools.lru_cache(maxsize=4096)
def rows_config(
    n: int,
    h: int,
    length: int,
    d: int,
    dv: int,
    dtype: torch.dtype,
    device: torch.device,
    given: Given = None,
    *,
    merge: bool = True,
) -> Config:
    """The configuration of ``rows_group`` for a shape on a device.

    Rows that fill the device are not split. Fewer are split until there is about one program a
    multiprocessor, but into shares of about 128 keys at least, and where a launch of its own has to
    ``merge`` them not into two below 512: that would cost more than it saves.
    """
    limits = device_limits(device)
    programs = max(n * cdiv(h, 64), 1)
    splits = 1
    if 2 * programs < 3 * limits.processors:
        splits = min(max(limits.processors // programs, 1), max(length // 128, 1))
        share = cdiv(cdiv(max(length, 1), splits), 128) * 128
        if merge and share < 512 and cdiv(length, share) == 2:
            splits = 1
    narrow = _narrow(d, dv)
    if splits > 1:
        crowd = "split"
        rule = (128, 8, 1) if length <= 128 * splits else (128, 4, 3)
    else:
        one = programs <= limits.processors
        crowd = "one" if one else _crowd(programs, limits.processors)
        rule = _rows_tile(programs, length, narrow, limits.processors)
    name = _class("rows", crowd, narrow, cdiv(length, splits))
    tile, tuned = _tile(name, rule, dtype.itemsize, device, given)
    block_h, block_l, warps, stages = _fit(h, d, dv, dtype.itemsize, limits, tile)
    chunk = cdiv(max(cdiv(length, splits), 1), block_l) * block_l
    splits = max(cdiv(length, chunk), 1)
    if chunk > block_l:
        stages = max(stages, 2)
    head_tiles = cdiv(h, block_h)
    # Few programs wait for their first keys; large, wide tiles restage q too seldom to notice.
    late = n * splits * head_tiles <= 4 * limits.processors
    late = late or (block_l >= 128 and not narrow)
    return Config(block_h, block_l, splits, chunk, head_tiles, warps, stages, late, tuned, name)


def _packed_tile(longest: int, many: bool, narrow: bool) -> Tile:
    """The tile of ``varlen_items`` when a program takes a whole row, of up to ``longest`` keys."""
    if longest <= 256:
        return (32, 2, 3) if many else (64, 4, 3)
    return (128, 4, 3) if narrow and not many else (64, 4, 3)


@functools.lru_cache(maxsize=4096)
def varlen_config(
    n: int,
    h: int,
    total: int,
    d: int,
    dv: int,
    max_seqlen: int | None,
    dtype: torch.dtype,
    device: torch.device,
    given: Given = None,
) -> Config:
    """The configuration of ``selection_varlen``; ``chunk`` keys are one work item.

    Rows that fill the device are not split where none is known to be over four times as long as
    the mean. Otherwise they get items of their mean length, twice it where the longest is not
    known, so that only long rows are split; few rows are split into two items a multiprocessor.
    """
    limits = device_limits(device)
    programs = n * cdiv(h, 64)
    narrow, crowd = _narrow(d, dv), _crowd(programs, limits.processors)
    split = 2 * programs < 3 * limits.processors
    if not split and max_seqlen is not None and n * max_seqlen <= 4 * total:
        longest = max(max_seqlen, 1)
        name = _class("packed", crowd, narrow, longest)
        rule = _packed_tile(longest, crowd == "many", narrow)
        tile, tuned = _tile(name, rule, dtype.itemsize, device, given)
        block_h, block_l, warps, stages = _fit(h, d, dv, dtype.itemsize, limits, tile)
        if longest > block_l:
            stages = max(stages, 2)
        return Config(block_h, block_l, 1, 0, cdiv(h, block_h), warps, stages, False, tuned, name)
    name = _class("varlen", "split" if split else crowd, narrow, cdiv(total, max(n, 1)))
    rule = (128, 4, 3) if narrow else (64, 4, 3)
    tile, tuned = _tile(name, rule, dtype.itemsize, device, given)
    block_h, block_l, warps, stages = _fit(h, d, dv, dtype.itemsize, limits, tile)
    head_tiles = cdiv(h, block_h)
    want = cdiv(total * head_tiles, 4 * limits.processors)
    if 2 * n * head_tiles >= 3 * limits.processors:
        items = cdiv(total, n) * (2 if max_seqlen is None else 1)
        want = max(want, min(items, 4 * want))
    else:
        want *= 2
    if max_seqlen is not None:
        want = min(want, max(max_seqlen, 1))
    chunk = max(cdiv(want, block_l), cdiv(128, block_l)) * block_l
    late = n + total // chunk <= 4 * limits.processors
    return Config(block_h, block_l, 0, chunk, head_tiles, warps, stages, late, tuned, name)


@functools.lru_cache(maxsize=4096)
def ranges_config(
    rows: int,
    h: int,
    n_spans: int,
    s_kv: int,
    d: int,
    dv: int,
    selected_len: int | None,
    dtype: torch.dtype,
    device: torch.device,
    given: Given = None,
) -> Config:
    """The configuration of ``selection_ranges``; its splits share a row's keys evenly.

    How many keys a row selects is known on the device only: a launch may have more splits than a
    row has shares of 128 keys, and the programs left over end at once.
    """
    limits = device_limits(device)
    programs = max(rows * cdiv(h, 64), 1)
    bound = s_kv if selected_len is None else min(selected_len, s_kv)
    splits = 1
    if 2 * programs < 3 * limits.processors:
        splits = max(1, min(2 * limits.processors // programs, cdiv(bound, 128), 64))
    narrow, crowd = _narrow(d, dv), _crowd(programs, limits.processors)
    if splits > 1:
        crowd, rule = "split", (32, 2, 4)
    elif crowd == "many":
        rule = (32, 1, 3) if narrow else (64, 4, 2)
    else:
        rule = (64, 4, 3)
    # The keys of a row are not known, so all lengths are one class.
    name = _class("ranges", crowd, narrow, 0)
    tile, tuned = _tile(name, rule, dtype.itemsize, device, given)
    block_h, block_l, warps, stages = _fit(h, d, dv, dtype.itemsize, limits, tile)
    head_tiles = cdiv(h, block_h)
    late = rows * splits * head_tiles <= 4 * limits.processors
    return Config(block_h, block_l, splits, 0, head_tiles, warps, stages, late, tuned, name)


@functools.lru_cache(maxsize=4096)
def decode_spans_config(
    rows: int, h: int, longest: int, d: int, dv: int, dtype: torch.dtype, device: torch.device
) -> Config:
    """The configuration of ``ranges_kernel`` in a decode step, whose rows differ in length.

    Two programs a multiprocessor; rows that are more than that are split all the same, so that a
    window's programs do not leave multiprocessors to the longer ones of selections.
    """
    limits = device_limits(device)
    share = 2 * limits.processors // (rows * cdiv(h, 64))
    splits = min(share if share > 1 else 3, max(cdiv(longest, 128), 1), 64)
    block_h, block_l, warps, stages = _fit(h, d, dv, dtype.itemsize, limits, (64, 4, 3))
    head_tiles = cdiv(h, block_h)
    late = rows * splits * head_tiles <= 4 * limits.processors
    return Config(block_h, block_l, splits, 0, head_tiles, warps, stages, late)


def chosen_config(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    extra: torch.Tensor | None = None,
    *,
    longest: int | None = None,
) -> Config:
    """The configuration that ``op`` would launch with on these tensors: for its ``config``, or for
    a record of it.

    Args:
        op: "selection_rows", "selection_varlen" or "selection_ranges".
        q, k, v: as the op takes them.
        extra: cu_seqlens or ranges, for the ops that take one.
        longest: as the op's max_seqlen or selected_len.

    Raises:
        ValueError: an unknown op.
    """
    d, dv = q.shape[-1], v.shape[-1]
    if op == "selection_rows":
        return rows_config(q.shape[0], q.shape[1], k.shape[1], d, dv, q.dtype, q.device)
    if op == "selection_varlen":
        n, h, total = q.shape[0], q.shape[1], k.shape[0]
        return varlen_config(n, h, total, d, dv, longest, q.dtype, q.device)
    if op == "selection_ranges" and extra is not None:
        b, s, g, h, _ = q.shape
        spans, s_kv = extra.shape[-2], k.shape[2]
        return ranges_config(b * s * g, h, spans, s_kv, d, dv, longest, q.dtype, q.device)
    raise ValueError(f"there is no configuration for op {op!r} with these tensors")
