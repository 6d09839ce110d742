"""Draw the inputs of a case into a file: `python -m nsabench.cli._draw RUN CASE FILE.pt`."""

import sys
from pathlib import Path

from nsabench import ops
from nsabench.model.job import input_seeds
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose


def main(run: Path, case_id: str, file: Path) -> None:
    """Draw the first set of the main pass: the same bits if this is the device of the run."""
    import torch

    plan = Plan.read(run / "plan.json")
    if plan.ops:
        ops.load_file(Path(plan.ops), plan.ops_sha256)
    case = plan.by_id[case_id].case
    device = "cuda" if plan.device == "cuda" and torch.cuda.is_available() else "cpu"
    op = ops.get(case.op)
    seed = input_seeds(plan.entropy, Purpose.MAIN, case)[0]
    inputs = op.draw(ops.sizes(case), case.dtype, case.distribution, seed, device)
    tensors = {name: tensor.cpu() for name, tensor in inputs.tensors.items()}
    saved = {"tensors": tensors, "options": dict(inputs.options), "by": list(op.differentiable)}
    torch.save(saved, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
