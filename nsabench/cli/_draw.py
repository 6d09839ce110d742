"""Write inputs and right results of a case: `python -m nsabench.cli._draw RUN CASE NAME FILE`."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch

from nsabench import ops
from nsabench.checker.judge import Oracles
from nsabench.checks import parity
from nsabench.model.case import Case
from nsabench.model.job import input_seeds
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose, Role
from nsabench.ops import Probe


def main(run: Path, case_id: str, name: str, file: Path) -> None:
    """Write a case's first inputs and probes, with right results. Equal devices draw them alike."""
    plan = Plan.read(run / "plan.json")
    if plan.ops:
        ops.load_file(Path(plan.ops), plan.ops_sha256)
    measured = plan.by_id[case_id].case
    info = plan.info(measured.op, name)
    case = ops.computed(measured, info.computes)
    device = "cuda" if plan.device == "cuda" and torch.cuda.is_available() else "cpu"
    op, seed = ops.get(case.op), input_seeds(plan.entropy, Purpose.MAIN, measured)[0]
    probes = op.probes(case) if info.role is Role.CANDIDATE else {}
    sets = [_draw_set(case, seed, device)]
    sets += [_draw_set(case, seed, device, probe, what) for what, probe in probes.items()]
    torch.save({"sets": sets, "by": list(op.differentiable)}, file)


def _draw_set(
    case: Case, seed: int, device: str, probe: Probe | None = None, what: str = ""
) -> dict[str, Any]:
    oracles = Oracles(case, [seed], device, probe)
    inputs, grad_out = oracles.draw(seed)
    resolved = case.tolerances.rel_l2_ratio * parity.resolution(case)
    if parity.is_unconditioned(case):
        resolved = float("inf")
    return {
        "probe": what,
        "tensors": {name: tensor.cpu() for name, tensor in inputs.tensors.items()},
        # The script runs without nsabench, and so without its classes.
        "options": {
            name: dict(vars(value)) if dataclasses.is_dataclass(value) else value
            for name, value in inputs.options.items()
        },
        "grad_out": None if grad_out is None else grad_out.cpu(),
        "expected": {name: tensor.cpu() for name, tensor in oracles.expected[0].items()},
        "mae": float("inf") if probe else case.tolerances.mae,
        "relative": parity.find_probe_limit(oracles.case) if probe else resolved,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
