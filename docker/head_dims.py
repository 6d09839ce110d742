"""Leaves in the unpacked sdist of flash-attn the kernels of some head dims alone, since nothing in
it can be told to: of two head dims they are a third of all.

    python3 head_dims.py FOLDER 64 128

A head dim that none of them is for is refused when it is called: its buffers are made for tiles of
its own size, and a larger kernel would write behind them. Standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

KNOWN = (32, 64, 96, 128, 192, 256)
SWITCH = re.compile(r"#define HEADDIM_SWITCH\(HEADDIM, \.\.\.\).*?\}\(\)\n", re.DOTALL)
SOURCE = re.compile(r'^.*"csrc/flash_attn/src/flash_\w+_hdim(\d+)_\w+\.cu",\n', re.MULTILINE)
BUILT = "this flash-attn is built for head dims"


def smallest(kernel: int) -> int:
    """The smallest head dim whose buffers are as wide as this kernel's tiles."""
    return kernel - (32 if kernel <= 128 else 64) + 1


def switch(dims: list[int]) -> str:
    """The macro that picks a kernel by the head dim of a call."""
    lines = ["#define HEADDIM_SWITCH(HEADDIM, ...)", "  [&] {"]
    for dim in dims:
        lines += [
            f"    if (HEADDIM >= {smallest(dim)} && HEADDIM <= {dim}) {{",
            f"      constexpr static int kHeadDim = {dim};",
            "      return __VA_ARGS__();",
            "    }",
        ]
    text = f"{BUILT} {' '.join(map(str, dims))} alone"
    return " \\\n".join([*lines, f'    throw std::runtime_error("{text}");', "  }()\n"])


def narrow(source: Path, dims: list[int]) -> int:
    """Change the files; how many kernels are left. Ends where they are not as they are known."""
    wrong = [dim for dim in dims if dim not in KNOWN]
    if wrong or not dims:
        sys.exit(f"flash-attn has kernels for {', '.join(map(str, KNOWN))}, and not for {wrong}")
    setup, header = source / "setup.py", source / "csrc/flash_attn/src/static_switch.h"
    sources, macro = setup.read_text(), header.read_text()
    if len(SWITCH.findall(macro)) != 1 or {int(n) for n in SOURCE.findall(sources)} != {*KNOWN}:
        sys.exit(f"{source} is not a flash-attn whose kernels are known here")
    kept = SOURCE.sub(lambda line: line[0] if int(line[1]) in dims else "", sources)
    setup.write_text(kept)
    pragma = "#pragma once\n"
    macro = SWITCH.sub(lambda _: switch(dims), macro)
    header.write_text(macro.replace(pragma, f"{pragma}#include <stdexcept>\n", 1))
    return len(SOURCE.findall(kept))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    left = narrow(Path(sys.argv[1]), [int(dim) for dim in sys.argv[2:]])
    sys.stdout.write(f"{left} kernels are left\n")
