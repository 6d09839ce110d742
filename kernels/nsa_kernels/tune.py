"""python -m nsa_kernels.tune [CLASS...]: measure the best tile of each shape class on this GPU.

A shape class is a set of shapes that share a tile, which a rule (``selection/*/config.py``)
chooses. For each class, one shape is timed with every tile that fits. The tiles take turns, and L2
is flushed before each call. If the fastest tile beats the rule's by ``MARGIN``, it goes into the
file that ``launch.tuned`` reads in later processes. Otherwise the file gets none.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from .launch.config import RULE, Config, shared_estimate
from .launch.device import device_limits
from .launch.tuned import Tile, tuned_tiles, write
from .selection import selection_ranges, selection_rows, selection_varlen
from .selection.ranges.config import ranges_config
from .selection.rows.config import rows_config
from .selection.varlen.config import varlen_config

TILES: tuple[Tile, ...] = (
    *((32, 1, stages) for stages in (1, 2, 3, 4)),
    *((block_l, 2, stages) for block_l in (32, 64, 128) for stages in (2, 3, 4)),
    *((block_l, 4, stages) for block_l in (64, 128) for stages in (1, 2, 3, 4)),
    *((128, 8, stages) for stages in (1, 2, 3)),
)
MARGIN = 1.02
"""A tile replaces the rule's tile if it is this many times faster. A smaller gain may be noise."""
ROUNDS = 15
HEADS = 8
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Trial:
    """A call to time: the op, its tensors, and the function that makes a ``Config``."""

    launch: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    configure: Callable[..., Config]
    sizes: tuple[int | None, ...]

    def config(self, device: torch.device, tile: Tile | None = None) -> Config:
        """Return the configuration with ``tile``, or with the rule's tile if it is None."""
        return self.configure(*self.sizes, DTYPE, device, tile or RULE)

    def run(self, config: Config) -> None:
        self.launch(*self.tensors, config=config)


def fitting(d: int, dv: int, shared_bytes: int) -> list[Tile]:
    """Return the tiles whose buffers fit in ``shared_bytes`` of shared memory."""
    return [t for t in TILES if shared_estimate(16, t[0], d, dv, 2, t[2]) <= shared_bytes]


def trials(device: torch.device) -> Iterator[Trial]:
    """Yield trials of all shape classes: 1/8, 1/2, 1, 2 and 8 rows for each multiprocessor."""
    processors = device_limits(device).processors

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, device=device, dtype=torch.float32).to(DTYPE)

    few, more = max(processors // 8, 1), max(processors // 2, 1)
    for n in (few, more, processors, 2 * processors, 8 * processors):
        for d in (64, 128):
            q = draw(n, HEADS, d)
            for length in (64, 128, 256, 512, 1024, 2048):
                kv = (draw(n, length, d), draw(n, length, d))
                shape = (n, HEADS, length, d, d)
                yield Trial(selection_rows, (q, *kv), rows_config, shape)
            for mean in (32, 64, 128, 256, 512, 1024):
                # Lengths from 0 to twice the mean, shuffled.
                lengths = torch.arange(n)[torch.randperm(n)] * (2 * mean) // n
                cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(device, torch.int32)
                total = int(cu[-1])
                tensors = (q, draw(total, d), draw(total, d), cu)
                for longest in (None, 2 * mean):
                    sizes = (n, HEADS, total, d, d, longest)
                    yield Trial(selection_varlen, tensors, varlen_config, sizes)
            s_kv, spans, size = 4096, 8, 128
            starts = torch.stack([torch.randperm(s_kv // size)[:spans] for _ in range(n)]) * size
            ranges = torch.stack([starts, starts + size], -1).view(n, 1, 1, spans, 2)
            kv = (draw(n, 1, s_kv, d), draw(n, 1, s_kv, d))
            tensors = (q.view(n, 1, 1, HEADS, d), *kv, ranges.to(device, torch.int32))
            sizes_of_spans = (n, HEADS, spans, s_kv, d, d, spans * size)
            yield Trial(selection_ranges, tensors, ranges_config, sizes_of_spans)


def _works(trial: Trial, config: Config) -> bool:
    try:
        trial.run(config)
    except RuntimeError:
        return False
    return True


def times(trial: Trial, configs: Sequence[Config], device: torch.device) -> dict[Config, float]:
    """Return the median time in milliseconds of each configuration that works."""
    with ThreadPoolExecutor(8) as pool:  # each ptxas is a process, so threads run in parallel
        works = list(pool.map(lambda config: _works(trial, config), configs))
    alive = [config for config, works_here in zip(configs, works, strict=True) if works_here]
    # Torch before 2.5 does not report the size of L2. The default is larger than any L2.
    l2_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 128 << 20)
    # Reading this tensor empties L2. Writing it would also leave lines to be written back.
    flush = torch.zeros(2 * l2_bytes // 4, device=device)
    samples: dict[Config, list[float]] = {config: [] for config in alive}
    for turn in range(ROUNDS):
        marks = []
        for config in alive if turn % 2 else reversed(alive):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.sum()
            torch.cuda._sleep(200_000)  # keeps the GPU busy until the launch is queued
            begin.record()
            trial.run(config)
            end.record()
            marks.append((config, begin, end))
        torch.cuda.synchronize(device)
        for config, begin, end in marks:
            samples[config].append(begin.elapsed_time(end))
    return {config: statistics.median(milliseconds) for config, milliseconds in samples.items()}


def choose(medians: dict[Config, float], rule: Config) -> Config:
    """Return the fastest configuration if it beats the rule's by ``MARGIN``, else the rule's."""
    best = min(medians, key=lambda config: medians[config])
    return best if medians[best] * MARGIN < medians[rule] else rule


def tune(wanted: Sequence[str] = ()) -> dict[str, Tile]:
    """Measure the classes whose names contain one of ``wanted`` (all if empty); write the file.

    Returns:
        The tiles in the file: one for each class in which another tile beat the rule's tile.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    gpu, shared_bytes = torch.cuda.get_device_name(device), device_limits(device).shared_bytes
    tiles = dict(tuned_tiles(device))
    torch.manual_seed(0)
    seen: set[str] = set()
    for trial in trials(device):
        rule = trial.config(device)
        name = rule.shape_class
        if name in seen or (wanted and not any(part in name for part in wanted)):
            continue
        seen.add(name)
        d, dv = trial.tensors[0].shape[-1], trial.tensors[2].shape[-1]
        tile_of = {trial.config(device, t): t for t in fitting(d, dv, shared_bytes)}
        medians = times(trial, list(dict.fromkeys([rule, *tile_of])), device)
        best = choose(medians, rule)
        tiles.pop(name, None)
        if best != rule:
            tiles[name] = tile_of[best]
        path = write(gpu, tiles)
        _say(f"{name:28} rule {_shown(rule, medians)}  best {_shown(best, medians)}")
    _say(f"{len(seen)} classes measured; {path if seen else 'no file'} has {len(tiles)} tiles")
    return tiles


def _shown(config: Config, medians: dict[Config, float]) -> str:
    tile = (config.block_l, config.num_warps, config.num_stages)
    return f"{tile!s:12} {medians[config] * 1e3:8.1f} us"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("nsa_kernels.tune: no CUDA device was found; run it on the GPU to be tuned")
    tune(sys.argv[1:])
