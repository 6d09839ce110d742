"""Plans the cases of `nsabench check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from pydantic import ValidationError

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.case import Case, FixedCount, RatioCI, Timing
from nsabench.model.plan import Device, ImplementationInfo, Plan, PlannedCase
from nsabench.model.source import Source
from nsabench.model.vocabulary import Direction, DType, Role, Runs
from nsabench.sources import digest_of

TIMING = Timing(stopping=RatioCI(width=0.02, min_rounds=10, max_rounds=100, budget_s=1.0))
# For baselines that run only for their error, which parity needs.
UNTIMED = Timing(warmup_s=1e-6, stopping=FixedCount(kind="fixed_count", rounds=1))
TIMEOUT_S = 30.0
SEED = 20260101


@dataclass(frozen=True)
class Question:
    """op: empty for all ops of the file; shapes: such as "N=64,L=1024", or empty for the op's own;
    fresh: ignore cached baselines."""

    file: Path
    device: Device
    op: str = ""
    shapes: tuple[str, ...] = ()
    dtype: DType = DType.FLOAT16
    direction: Direction = Direction.FORWARD
    ops_file: Path | None = None
    sandboxed: bool = True
    fresh: bool = False


def plan(
    question: Question, infos: Sequence[ImplementationInfo], sources: Mapping[str, str]
) -> Plan:
    """Plan the cases of the file's ops, with the file's implementations and every baseline."""
    own = Source.of_digest(question.file, digest_of(question.file, sources))
    mine = [i for i in infos if i.source == own and i.role is Role.CANDIDATE]
    tried = [i for i in mine if question.op in ("", i.op)]
    if not tried:
        what = f"nothing of the op {question.op}" if question.op else "no candidate"
        names = ", ".join(sorted({i.op for i in mine}))
        raise UsageError(
            f"{question.file} implements {what}",
            f"it implements {names}." if names else "mark a function with @implementation(op=…).",
        )
    cases = []
    op_names = dict.fromkeys(i.op for i in tried)
    measured = [i for i in infos if i in tried or i.role is Role.BASELINE]
    for op_name in op_names:
        timed = any(Runs.timed(i.devices, question.device) for i in tried if i.op == op_name)
        for case in _plan_cases(question, op_name, TIMING if timed else UNTIMED):
            beside = tuple(i.name for i in measured if i.concerns(case))
            cases.append(PlannedCase(id=case.id, case=case, implementations=beside))
    return Plan(
        run_id=f"check-{token_hex(6)}",
        created=datetime.now(UTC).replace(microsecond=0),
        device=question.device,
        kernels=str(question.file),
        kernels_sha256=digest_of(question.file, sources),
        ops=str(question.ops_file) if question.ops_file else "",
        ops_sha256=digest_of(question.ops_file, sources),
        sources=dict(sources),
        sandboxed=question.sandboxed,
        matrices=[],
        implementations=[i for i in infos if i.op in op_names],
        cases=cases,
    )


def _plan_cases(question: Question, op_name: str, timing: Timing) -> Iterator[Case]:
    op = ops.get(op_name, str(question.file))
    shapes = question.shapes or op.check_shapes.get(question.device, ())
    if not shapes:
        raise UsageError(
            f"the op {op_name} brings no shapes to check on {question.device}",
            f"give one: --shape {','.join(f'{axis}=…' for axis in op.shape_model.model_fields)}.",
        )
    if question.direction not in op.directions:
        raise UsageError(f"the op {op_name} has no {question.direction}", "leave --direction away.")
    for text in shapes:
        try:
            sizes = dict(part.split("=") for part in text.replace(" ", "").split(","))
            shape = op.shape_model.model_validate(sizes)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the shape"
            raise UsageError(
                f"--shape {text} does not fit {op_name}: {where}: {first['msg']}",
                f"its sizes are {', '.join(op.shape_model.model_fields)}.",
            ) from None
        except ValueError:
            raise UsageError(f"--shape {text!r} holds no sizes", "write N=64,L=1024.") from None
        yield Case(
            op=op.name,
            shape=shape.model_dump(),
            dtype=question.dtype,
            direction=question.direction,
            distribution=op.distributions[0],
            streams=1,
            timeout_s=TIMEOUT_S,
            seed=SEED,
            timing=timing,
        )
