"""A script that calls one implementation on one case by itself, for a profiler or a bug report."""

from __future__ import annotations

from nsabench.assessment import labels
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.vocabulary import Direction
from nsabench.text import shown

FROM_A_FILE = """\
import runpy
import sys
import types
from pathlib import Path

import torch

found = {{}}


def implementation(*, op, name, **_):
    return lambda call: found.setdefault((op, name), call)


try:  # the file asks for nsabench, and needs no more of it than this
    import nsabench
except ModuleNotFoundError:
    nsabench = sys.modules["nsabench"] = types.ModuleType("nsabench")
nsabench.implementation = implementation
runpy.run_path({kernels!r})
call = found[{op!r}, {name!r}]
"""
INSTALLED = """\
from pathlib import Path

import torch

from nsabench import registry

call = next(i.call for i in registry.load() if (i.op, i.name) == ({op!r}, {name!r}))
"""
CALLS = """\
saved = torch.load(Path(__file__).with_suffix(".pt"), weights_only=True)
device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = {{name: tensor.to(device) for name, tensor in saved["tensors"].items()}}
for name in saved["by"] if {backward} else []:
    inputs[name].requires_grad_()


def once():
    out = call(**inputs, **saved["options"])
    if {backward}:
        out.backward(torch.ones_like(out))
    return out


for _ in range(3):  # compiled and warm
    out = once()
if device == "cuda":
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
for _ in range({calls}):
    out = once()
if device == "cuda":
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
print(tuple(out.shape), out.dtype, out.float().norm().item())
"""


def script(plan: Plan, case: Case, info: ImplementationInfo, calls: int = 10) -> str:
    """At most 60 lines. It needs torch, the file of the inputs beside it, and the user's file; an
    implementation of a package needs nsabench, too."""
    where = FROM_A_FILE if info.source.is_file else INSTALLED
    # A name of a plan could end the line, and go on as code.
    head = shown(f"# {info.name} on {labels.of_case(case)}, as the run {plan.run_id} measured it.")
    backward = case.direction is Direction.BACKWARD
    text = where + CALLS
    return f"{head}\n" + text.format(
        kernels=plan.kernels, op=info.op, name=info.name, backward=backward, calls=calls
    )
