"""Read and write the tiles that ``nsa_kernels.tune`` found better than a rule's on a GPU.

There is one file for each GPU model and Triton version, in the subfolder ``tuned`` of the cache
folder. A process reads it once. If there is no file, the rules of ``config`` apply.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
import triton

from .folders import cache_folder

Tile = tuple[int, int, int]
"""(block_l, num_warps, num_stages)."""


def tuned_file(gpu: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{gpu}-triton{triton.__version__}")
    return cache_folder() / "tuned" / f"{name}.json"


@functools.cache
def tuned_tiles(device: torch.device) -> Mapping[str, Tile]:
    """Return the tuned tile of each shape class on a device, or nothing if none was tuned.

    Raises:
        ValueError: the file does not hold tiles.
    """
    if device.type != "cuda":
        return {}
    path = tuned_file(torch.cuda.get_device_name(device))
    try:
        text = path.read_text()
    except OSError:
        return {}
    return parse(text, path)


def parse(text: str, path: Path) -> dict[str, Tile]:
    """Return the tiles in the text of a file. Raise ValueError if it holds anything else."""
    try:
        entries = json.loads(text)["tiles"].items()
        tiles = {name: (int(a), int(b), int(c)) for name, (a, b, c) in entries}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not hold tuned tiles ({error}); delete it, or run "
            "python -m nsa_kernels.tune again"
        ) from error
    for name, (block_l, warps, stages) in tiles.items():
        powers = block_l & (block_l - 1) == 0 and warps & (warps - 1) == 0
        if not (powers and 16 <= block_l <= 256 and 1 <= warps <= 16 and 1 <= stages <= 8):
            raise ValueError(
                f"{path}: {[block_l, warps, stages]} is not a tile for {name!r}; delete the file, "
                "or run python -m nsa_kernels.tune again"
            )
    return tiles


def write(gpu: str, tiles: Mapping[str, Tile]) -> Path:
    """Write the tiles of a GPU. A reader sees either the whole new file or the old one."""
    path = tuned_file(gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"gpu": gpu, "triton": triton.__version__, "tiles": dict(sorted(tiles.items()))}
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        json.dump(content, file, indent=1)
    Path(temporary).replace(path)
    return path
