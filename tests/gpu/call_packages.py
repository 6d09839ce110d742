"""Call every implementation that calls a library once, forward and backward, at a small shape on
CUDA, each library in a process of its own: right, wrong, unsupported or failed, and why.

    python -m tests.gpu.call_packages [NAME ...]
"""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SHAPES = {
    "selection_blocks": [
        ("B=1,T=1024,HQ=32,H=2,D=128,S=16,block_size=64", "random"),
        ("B=1,T=1024,HQ=32,H=2,D=128,S=8,block_size=64", "packed"),
        ("B=2,T=1000,HQ=32,H=2,D=128,S=4,block_size=64", "local"),
        ("B=1,T=1024,HQ=16,H=4,D=128,S=8,block_size=64", "random"),
    ],
    "decode_selected": [
        ("B=3,S=4096,HQ=64,H=4,D=128,block_size=64,n_selected=16", ""),
        ("B=3,S=5000,HQ=64,H=4,D=128,block_size=64,n_selected=16", ""),
        ("B=2,S=200,HQ=64,H=4,D=128,block_size=64,n_selected=16", ""),
    ],
    "selection_ranges": [
        ("B=64,S=1,G=2,H=8,D=128,S_kv=8192,n_spans=8,L=1000", "mixed"),
        ("B=1,S=256,G=4,H=4,D=64,S_kv=4096,n_spans=8,L=1024", "overlapping"),
    ],
    "decode_dense": [("B=3,S=5000,HQ=64,H=4,D=128", "")],
    "decode_compressed": [("B=3,S=5000,HQ=64,H=4,D=128,block=32,stride=16", "")],
    "decode_window": [("B=3,S=5000,HQ=64,H=4,D=128,window=512", "")],
    "causal_attention": [
        ("B=2,T=1000,HQ=32,H=2,D=128", "dense"),
        ("B=3,T=700,HQ=32,H=2,D=128", "packed"),
    ],
    "sliding_window": [
        ("B=2,T=1000,HQ=32,H=2,D=128,window=300", "dense"),
        ("B=3,T=700,HQ=32,H=2,D=128,window=300", "packed"),
    ],
    "compressed": [("B=2,T=1000,HQ=32,H=2,D=128,block=32,stride=16", "dense")],
    "selection_varlen": [("N=64,H=16,D=128,L=1024", "")],
    "nsa_attention": [
        ("B=1,T=4096,HQ=64,H=4,D=128", "dense"),
        ("B=2,T=700,HQ=32,H=2,D=128,n_selected=8,window=100", "packed"),
    ],
    "nsa_without_window": [
        ("B=1,T=1024,HQ=32,H=2,D=128,block_size=64,n_selected=16", "dense"),
        ("B=2,T=700,HQ=32,H=2,D=128,block_size=64,n_selected=8", "packed"),
    ],
}


def call_all(package: str) -> None:
    import torch

    from nsabench import Unsupported, ops, registry
    from nsabench.model.vocabulary import Direction, DType

    for item in registry.load():
        own = item.package.name if item.package is not None else item.name
        if own != package or item.op not in SHAPES:
            continue
        if item.role.value == "alternative":
            continue
        op = ops.get(item.op)
        for text, distribution in SHAPES[item.op]:
            distribution = distribution or op.distributions[0]
            if item.distributions and distribution not in item.distributions:
                continue
            shape = op.shape_model.model_validate(
                {n: int(v) for n, v in (p.split("=") for p in text.split(","))}
            )
            for direction in item.directions or op.directions:
                if direction not in (Direction.FORWARD, Direction.BACKWARD):
                    continue
                backward = direction is Direction.BACKWARD
                what = f"{package:32} {item.op:18} {item.name:24}"
                label = f"{what} {direction.value:9} {distribution:8} {text}"
                began = time.time()
                try:
                    inputs = op.draw(shape, DType.BFLOAT16, distribution, 0, "cuda")
                    named = {
                        n: x.clone().requires_grad_(backward and n in op.differentiable)
                        if x.is_floating_point()
                        else x
                        for n, x in inputs.tensors.items()
                    }
                    out = item.call(*named.values(), **inputs.options)
                    torch.cuda.synchronize()
                    errors = [relative(torch, out, op.oracle(inputs))]
                    if backward:
                        torch.manual_seed(0)
                        grad = torch.randn_like(out)
                        wanted = op.gradients(inputs, grad)
                        out.backward(grad)
                        torch.cuda.synchronize()
                        errors += [relative(torch, named[n].grad, wanted[n]) for n in wanted]
                    verdict = "right" if max(errors) < 2e-2 else "WRONG"
                    said = " ".join(f"{e:.2e}" for e in errors)
                    again = time.time()
                    for _ in range(20):
                        with torch.no_grad():
                            item.call(*inputs.tensors.values(), **inputs.options)
                    torch.cuda.synchronize()
                    said += f"  {(time.time() - again) / 20 * 1e6:.0f} us a call"
                except Unsupported as error:
                    verdict, said = "unsupported", str(error)
                except Exception as error:  # whatever a library does
                    verdict = "FAILED"
                    line = traceback.extract_tb(error.__traceback__)[-1]
                    where = f"{line.filename}:{line.lineno}"
                    said = f"{type(error).__name__}: {str(error)[:600]} ({where})"
                print(f"{verdict:12} {label}  [{time.time() - began:.1f} s] {said}", flush=True)
                if verdict == "FAILED" and "CUDA" in said:
                    print(f"{package}: the device is lost to this process", flush=True)
                    return


def relative(torch: Any, found: Any, wanted: Any) -> float:
    """The error over the norm, where the oracle says something."""
    wanted = wanted.double()
    there = wanted.isfinite()  # the oracle computes a sample of many queries
    difference = (found.double() - wanted).where(there, 0)
    return (difference.norm() / wanted.where(there, 0).norm()).item()


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        call_all(sys.argv[2])
        return
    from nsabench import registry

    libraries = {item.package for item in registry.load() if item.package is not None}
    names = sys.argv[1:] or [*(p.name for p in libraries), "query_major", "split_keys"]
    for package in libraries:
        print(f"{package.name:34} {package.version or '-- ' + package.install}", flush=True)

    def one(name: str) -> str:
        command = [sys.executable, "-m", "tests.gpu.call_packages", "--one", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=280)
        except subprocess.TimeoutExpired as error:
            out = error.stdout or b""
            return (out.decode() if isinstance(out, bytes) else out) + f"{name}: over 280 s\n"
        if done.returncode:
            return f"{done.stdout}{name}: exit {done.returncode}\n{done.stderr[-1500:]}\n"
        return done.stdout

    with ThreadPoolExecutor(len(names)) as pool:
        for text in pool.map(one, names):
            print(text, end="", flush=True)


if __name__ == "__main__":
    main()
