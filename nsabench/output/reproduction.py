"""A script that calls one implementation on one case by itself, for a profiler or a bug report."""

from __future__ import annotations

from nsabench.assessment import labels
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.vocabulary import Direction
from nsabench.output.templates import environment
from nsabench.text import shown


def script(plan: Plan, case: Case, info: ImplementationInfo, calls: int = 10) -> str:
    """Return at most 60 lines. They need torch, the file of the inputs beside them, and the user's
    file; an implementation of a package needs nsabench too."""
    templates = environment()
    templates.filters["repr"] = repr
    return templates.get_template("alone.py.j2").render(
        # A name of a plan could end the line, and go on as code.
        head=shown(
            f"# {info.name} on {labels.of_case(case)}, as the run {plan.run_id} measured it."
        ),
        is_file=info.source.is_file,
        kernels=plan.kernels,
        op=info.op,
        name=info.name,
        backward=case.direction is Direction.BACKWARD,
        calls=calls,
    )
