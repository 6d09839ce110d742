"""Wheels of fla-core called through its adapters on the CPU, by Triton's interpreter: right, wrong,
unsupported, or failed in the library, and why. Each is imported from a folder, and not installed;
einops, which it wants, is, in the environment of this or in the folder of --also. Some minutes a
wheel.

    pip download --no-deps -d wheels fla-core==0.6.0
    python -m tests.implementations.fla_wheels [--also FOLDER] wheels/*.whl
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl

SIZES = {"B": 1, "T": 70, "HQ": 16, "H": 1, "D": 16, "block_size": 16}
CASES = {
    "selection_blocks": ("fla", {**SIZES, "S": 2}),
    "nsa_without_window": ("fla_whole", {**SIZES, "n_selected": 4}),
}
# fla-core does not tune in an interpreter, and 0.3.2 asks torch.cpu for devices.
WITHOUT_A_GPU = """
import contextlib, torch
from triton.runtime import autotuner
autotuner.Autotuner._bench = lambda self, *given, **named: [0.0] * 3
torch.cpu.device = lambda index: contextlib.nullcontext()
"""


@triton.jit  # type: ignore[untyped-decorator]
def exp(x: Any) -> Any:
    return tl.exp(x)


@triton.jit  # type: ignore[untyped-decorator]
def log(x: Any) -> Any:
    return tl.log(x)


def interpret_what_was_kept() -> None:
    """0.3.2 keeps functions of Triton's language, which the interpreter then does not replace."""
    from fla.ops.nsa import compression, parallel

    for module in (compression, parallel):
        for function in (exp, log):
            if getattr(module, function.__name__) is getattr(tl, function.__name__):
                setattr(module, function.__name__, function)


def call(op: str) -> str:
    """One adapter with the fla-core that is found first."""
    import torch

    from nsabench import Unsupported, ops
    from nsabench.implementations.libraries import fla
    from nsabench.model.vocabulary import DType

    name, sizes = CASES[op]
    of = ops.get(op)
    shape = of.shape_model.model_validate(sizes)
    inputs = of.draw(shape, DType.FLOAT32, of.distributions[0], 0, "cpu")
    interpret_what_was_kept()
    try:
        out = getattr(fla, name)(*inputs.tensors.values(), **inputs.options)
    except Unsupported as error:
        return f"unsupported: {error}"
    except Exception as error:  # whatever a library does
        return f"failed: {type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
    wanted = of.oracle(inputs)
    held = wanted.isfinite()
    error = (out.double() - wanted)[held].abs().max().item()
    assert isinstance(out, torch.Tensor)
    return f"{'right' if error < 1e-5 else 'WRONG'}: off by {error:.1e} at most"


def run(wheel: Path, also: str) -> dict[str, Any]:
    """What each adapter gives with that wheel, by op."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as files:
        files.extractall(folder)
        path = os.pathsep.join(filter(None, (folder, also, *sys.path)))
        environment = os.environ | {
            "PYTHONPATH": path,
            "TRITON_INTERPRET": "1",
            "TORCH_COMPILE_DISABLE": "1",
            "PYTHONWARNINGS": "ignore",
        }
        for op in CASES:
            code = f"{WITHOUT_A_GPU}\nfrom {__spec__.name} import call\nprint(call({op!r}))"
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
            found[op] = lines[-1] if lines else f"exit {done.returncode}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--also", default="")
    given = parser.parse_args()
    for wheel in given.wheels:
        for op, said in run(wheel, given.also).items():
            print(f"{wheel.name.split('-')[1]:8} {op:20} {said}", flush=True)


if __name__ == "__main__":
    main()
