"""Turn matrices and implementations into a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from secrets import token_hex

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.case import Case, FixedCount
from nsabench.model.plan import WHOLE, Device, ImplementationInfo, Plan, PlannedCase
from nsabench.model.vocabulary import MARGIN, Role
from nsabench.planning import matrix, shards
from nsabench.planning.matrix import LoadedMatrix
from nsabench.planning.narrow import ALL, Narrowed, matches_any
from nsabench.planning.yaml_document import nearest
from nsabench.sources import digest_of

BRIEF = {"stopping": FixedCount(kind="fixed_count", rounds=1)}


def shipped_matrices() -> dict[str, Path]:
    folder = Path(str(files("nsabench_matrices")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_matrix(given: str) -> Path:
    path = Path(given)
    if path.is_file():
        return path
    shipped = shipped_matrices()
    # `matrices/NAME.yaml` also works outside a checkout.
    if path.stem in shipped and path.parent in (Path(), Path("matrices")):
        return shipped[path.stem]
    raise UsageError(f"there is no matrix {given!r}", nearest(path.stem, list(shipped)))


def resolve(
    matrices: Sequence[LoadedMatrix],
    implementations: Sequence[ImplementationInfo],
    *,
    device: Device,
    kernels: Path | None = None,
    ops_file: Path | None = None,
    sources: Mapping[str, str] | None = None,
    shard: str = WHOLE,
    margin: float = MARGIN,
    sandboxed: bool = True,
    brief: bool = False,
    narrowed: Narrowed = ALL,
) -> Plan:
    """Return the plan of some matrices. If two name the same case, the first one counts.

    brief: time each implementation in one round only.
    """
    narrowed.refuse_unknown(matrices, implementations)
    chosen: dict[str, PlannedCase] = {}
    for loaded in matrices:
        for case in filter(narrowed.wants, loaded.cases):
            names = _select(loaded, case, implementations, kernels)
            names = narrowed.keep_candidates(case, names, implementations)
            chosen.setdefault(case.id, PlannedCase(id=case.id, case=case, implementations=names))
    whole = list(chosen.values())
    if brief:
        whole = [planned.model_copy(update={"case": _shorten(planned.case)}) for planned in whole]
        # A brief run gives no verdict on times, so only the controls of parity are needed.
        implementations = [i for i in implementations if i.caught_by in ("", "parity")]
    cases = _with_controls(shards.share(whole, shard), implementations)
    is_whole = shard == WHOLE
    canary = None if is_whole else shards.canary(whole, implementations, device)
    measured = cases if canary is None else [*cases, canary]
    used = {(c.case.op, name) for c in measured for name in c.implementations}
    now = datetime.now(UTC).replace(microsecond=0)
    return Plan(
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{token_hex(3)}",
        created=now,
        device=device,
        kernels=str(kernels) if kernels else "",
        kernels_sha256=digest_of(kernels, sources or {}),
        ops=str(ops_file) if ops_file else "",
        ops_sha256=digest_of(ops_file, sources or {}),
        sources=dict(sources or {}),
        shard=shard,
        margin=margin,
        sandboxed=sandboxed,
        where=narrowed.where,
        whole="" if is_whole else " ".join(chosen),
        canary=canary,
        matrices=[loaded.info for loaded in matrices],
        implementations=[i for i in implementations if (i.op, i.name) in used],
        cases=cases,
    )


def _shorten(case: Case) -> Case:
    return case.model_copy(update={"timing": case.timing.model_copy(update=BRIEF)})


def _with_controls(
    cases: list[PlannedCase], implementations: Sequence[ImplementationInfo]
) -> list[PlannedCase]:
    """Add each control to its smallest and largest case of each direction, mode and itemsize."""
    added: dict[str, list[ImplementationInfo]] = {}
    baselines = {i.name for i in implementations if i.role is Role.BASELINE}
    works = {planned.id: ops.work(planned.case) for planned in cases}
    by_work = sorted(cases, key=lambda planned: works[planned.id].bytes_min)
    for control in (i for i in implementations if i.role is Role.CONTROL):
        groups: dict[tuple[int, str, str], list[PlannedCase]] = {}
        for planned in by_work:
            work = works[planned.id]
            if control.concerns(planned.case) and control.least.is_met(work.bytes_min, work.flops):
                case = planned.case
                key = (case.dtype.itemsize, case.direction, case.timing.mode)
                groups.setdefault(key, []).append(planned)
        for group in groups.values():
            own = control.wraps or control.computes_by
            by = {own} if own else baselines
            # Prefer cases that measure the control's baseline anyway, so that none is added.
            ids = [c.id for c in group if by.intersection(c.implementations)]
            ids = ids or [c.id for c in group]
            for watched in {ids[0], ids[-1]}:
                added.setdefault(watched, []).append(control)
    return [_with_watched(planned, added.get(planned.id, [])) for planned in cases]


def _with_watched(planned: PlannedCase, controls: Sequence[ImplementationInfo]) -> PlannedCase:
    wrapped = dict.fromkeys(i.wraps for i in controls if i.wraps)
    alongside = tuple(name for name in wrapped if name not in planned.implementations)
    names = [*planned.implementations, *alongside, *(i.name for i in controls)]
    changed = {"implementations": tuple(dict.fromkeys(names)), "alongside": alongside}
    return planned.model_copy(update=changed)


def _select(
    loaded: LoadedMatrix,
    case: Case,
    implementations: Sequence[ImplementationInfo],
    kernels: Path | None,
) -> tuple[str, ...]:
    of_op = [i for i in implementations if i.op == case.op]
    selection = loaded.selection
    for pattern in [*selection.only, *selection.skip]:
        if pattern != "*" and not any(fnmatchcase(i.name, pattern) for i in of_op):
            where = (
                f"{kernels.name} registers none with such a name for this op; "
                if kernels is not None
                else "if it is your own, give its file: --kernels FILE.py; else, "
            )
            raise UsageError(
                f"{loaded.info.file}: no implementation of {case.op} matches {pattern!r}",
                where + nearest(pattern, [i.name for i in of_op]),
            )
    names = tuple(
        i.name
        for i in of_op
        if i.role is not Role.CONTROL
        and matches_any(i.name, selection.only)
        and not matches_any(i.name, selection.skip)
        and i.concerns(case)
    )
    if not names:
        raise UsageError(
            f"{loaded.info.file}: no implementation of {case.op} is left to measure",
            "name some in implementations.only, or skip fewer.",
        )
    return names


def load_matrices(given: Sequence[str]) -> list[LoadedMatrix]:
    """Load matrices. Raises `UsageError` if an op of the user's fails for one of the cases."""
    matrices = [loaded for name in given for loaded in matrix.load(find_matrix(name))]
    for case in (case for loaded in matrices for case in loaded.cases):
        ops.refuse_unanswered(case)
    return matrices


def default_matrices(device: Device) -> list[str]:
    """Return the names of the matrices that `nsabench all` measures if none is given."""
    others = [name for name in shipped_matrices() if name != "quick"]
    return ["quick"] if device == "cpu" else others
