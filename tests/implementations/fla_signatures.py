"""The parameters of fla-core's `parallel_nsa` by version, as its wheels have them.

pip download --no-deps -d wheels fla-core==0.3.2
python -m tests.implementations.fla_signatures wheels/*.whl
"""

from __future__ import annotations

import ast
import sys
import zipfile
from pathlib import Path

_OF_THE_FIRST = (
    "q, k, v, g_cmp=None, g_slc=None, g_swa=None, block_indices=None, block_counts=16, "
    "block_size=64, window_size=0, scale=None, cu_seqlens=None"
)
# The oldest on PyPI and the newest two, on 2026-11-23.
RECORDED = {"0.3.2": _OF_THE_FIRST, "0.5.2": _OF_THE_FIRST, "0.6.0": _OF_THE_FIRST}


def read(wheel: Path) -> tuple[str, str]:
    """Its version and the parameters, without their types."""
    with zipfile.ZipFile(wheel) as files:
        tree = ast.parse(files.read("fla/ops/nsa/parallel.py"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "parallel_nsa":
            for argument in node.args.args:
                argument.annotation = None
            return wheel.name.split("-")[1], ast.unparse(node.args).replace(" = ", "=")
    raise SystemExit(f"{wheel} has no parallel_nsa")


if __name__ == "__main__":
    for given in sys.argv[1:]:
        version, parameters = read(Path(given))
        known = RECORDED.get(version)
        said = "as recorded" if known == parameters else f"recorded: {known}"
        print(f"{version}: {parameters} ({said})")
