"""A plan: the cases of a run, and the implementations of each. It never changes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, StringConstraints, ValidationError

from nsabench import limits, reading
from nsabench.errors import UsageError
from nsabench.files import whole
from nsabench.model.case import Case, Frozen
from nsabench.model.source import Source
from nsabench.model.version import __version__
from nsabench.model.vocabulary import MARGIN, Direction, Kind, Mode, Role, Runs

Device = Literal["cuda", "cpu"]
WHOLE = "1/1"  # the shard that is the whole plan
# A run id becomes part of paths and links.
RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,99}$")]


def _as_moment(stated: datetime) -> datetime:
    # A time without a zone is UTC. Near datetime's limits, conversions between zones overflow.
    moment = stated if stated.tzinfo is not None else stated.replace(tzinfo=UTC)
    if not 1970 < moment.year < 9000:
        raise ValueError("no run can be from this year")
    return moment


Moment = Annotated[datetime, AfterValidator(_as_moment)]


class LibraryRelease(Frozen):
    """The library that an implementation calls. All fields are empty if it calls none."""

    package: str = ""
    version: str = ""  # or the commit of a repository; empty: not installed
    licence: str = ""  # an SPDX expression

    def __str__(self) -> str:
        return f"{self.package} {self.version}".rstrip()


class LeastWork(Frozen):
    """The least work of a case for a control: with less work, its trick would save no time."""

    bytes_min: int = 0
    flops: int = 0
    flops_per_byte: int = 0

    def is_met(self, bytes_min: int, flops: int) -> bool:
        return (
            bytes_min >= self.bytes_min
            and flops >= self.flops
            and flops >= self.flops_per_byte * bytes_min
        )


class ImplementationInfo(Frozen):
    """Facts about an implementation that are known without importing it."""

    op: str
    name: str
    role: Role
    devices: tuple[Runs, ...]
    caught_by: Literal["", "baseline", "burst", "host", "parity", "roofline", "timer"] = ""
    wraps: str = ""
    needs_order: bool = False  # of a control: only the order of its work on streams is wrong
    computes_by: str = ""  # of a control: the baseline whose work it does
    source: Source
    # The implementation is measured only on cases with these values; empty: on all.
    distributions: tuple[str, ...] = ()
    directions: tuple[Direction, ...] = ()
    modes: tuple[Mode, ...] = ()
    least: LeastWork = LeastWork()
    computes: str = ""  # of an alternative: the op whose function it computes
    kind: Kind | None = None  # of a baseline
    origin: LibraryRelease = LibraryRelease()
    compiled_by: str = ""  # the compiler at its first call: `triton`, `nvcc`, `cutlass`

    def concerns(self, case: Case) -> bool:
        return (
            self.op == case.op
            and (not self.distributions or case.distribution in self.distributions)
            and (not self.directions or case.direction in self.directions)
            and (not self.modes or case.timing.mode in self.modes)
        )


class MatrixInfo(Frozen):
    name: str
    file: str
    sha256: str


class PlannedCase(Frozen):
    id: str
    case: Case
    implementations: tuple[str, ...]
    alongside: tuple[str, ...] = ()  # baselines that run only for a control that wraps them
    shard: int = Field(0, ge=0)  # in a merged run: which shard measured it, from 1


class Plan(Frozen):
    run_id: RunId
    created: Moment
    nsabench: str = __version__
    device: Device
    kernels: str = ""  # absolute path of the user's file
    kernels_sha256: str = ""
    ops: str = ""  # absolute path of the file with the user's op
    ops_sha256: str = ""
    sources: dict[str, str] = Field(default={})  # by `Source`, the sha256 of its files
    shard: str = WHOLE
    entropy: str = Field(default_factory=lambda: token_hex(16))  # secret; seeds come from it
    margin: float = Field(MARGIN, ge=1, allow_inf_nan=False)  # ratios near it are confirmed
    sandboxed: bool = True  # False: the user switched the sandbox off
    where: tuple[str, ...] = ()  # the conditions of --where
    whole: str = ""  # of a shard: the ids of the cases of all shards, separated by blanks
    canary: PlannedCase | None = None  # a case that all shards measure, in a pass of its own
    shards: tuple[RunId, ...] = ()  # the runs that were merged into this one
    matrices: list[MatrixInfo]
    implementations: list[ImplementationInfo]
    cases: list[PlannedCase]

    @cached_property
    def by_id(self) -> dict[str, PlannedCase]:
        return {planned.id: planned for planned in self.cases}

    def case_or_canary(self, case_id: str) -> PlannedCase:
        planned = self.by_id.get(case_id) or self.canary
        assert planned is not None
        return planned

    @cached_property
    def by_name(self) -> dict[tuple[str, str], ImplementationInfo]:
        return {(i.op, i.name): i for i in reversed(self.implementations)}

    @property
    def origins(self) -> list[LibraryRelease]:
        origins = {i.origin.package: i.origin for i in self.implementations if i.origin.version}
        return [origins[name] for name in sorted(origins)]

    def narrowed(self, cases: Iterable[PlannedCase], where: Iterable[str]) -> Plan:
        return self.model_copy(update={"cases": list(cases), "where": (*self.where, *where)})

    def differences(self, other: Plan) -> list[str]:
        """Return the fields that make two plans ask for different measurements."""
        fields = type(self).model_fields.keys() - {"run_id", "created", "entropy"}
        return sorted(name for name in fields if getattr(self, name) != getattr(other, name))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy without the cached properties of this plan."""
        copy = super().model_copy(update=update, deep=deep)
        for derived in ("by_id", "by_name", "clean_sources"):
            copy.__dict__.pop(derived, None)
        return copy

    def info(self, op: str, name: str) -> ImplementationInfo:
        return self.by_name[op, name]

    @cached_property
    def clean_sources(self) -> dict[str, str]:
        """The sources that register no candidate, each with its sha256."""
        foreign = {i.source for i in self.implementations if i.role is Role.CANDIDATE}
        return {source: d for source, d in self.sources.items() if source not in foreign}

    def list_clean(self, planned: PlannedCase, role: Role) -> list[str]:
        """Return the implementations of a role and case from clean sources, without `alongside`."""
        names = [name for name in planned.implementations if name not in planned.alongside]
        infos = [self.info(planned.case.op, name) for name in names]
        clean = self.clean_sources
        return [i.name for i in infos if i.role is role and i.source in clean]

    _sha256: str = PrivateAttr("")  # of the file that was read or written

    @property
    def sha256(self) -> str:
        return self._sha256 or hashlib.sha256(self._as_json()).hexdigest()

    def _refuse_altered(self) -> None:
        source = Source.from_digest(Path(self.ops), self.ops_sha256)
        is_digest = re.fullmatch(r"[0-9a-f]{64}", self.ops_sha256) is not None
        # Without a digest, the file of the op could hold any code.
        if self.ops and not (is_digest and self.ops_sha256 == self.sources.get(source)):
            raise ValueError(f"it names the op in {self.ops}, but not the sha256 of that file")
        if len(self.by_id) != len(self.cases):
            raise ValueError("it holds a case twice")
        for planned in [*self.cases, *([self.canary] if self.canary else [])]:
            if planned.id != planned.case.id:
                altered = f"case {planned.id} was altered"
                raise ValueError(f"{altered}: its content hashes to {planned.case.id}")

    def _as_json(self) -> bytes:
        return self.model_dump_json(indent=1).encode() + b"\n"

    def write(self, path: Path) -> None:
        """Write the plan. Raises `UsageError` if it is larger than `read` accepts."""
        content = self._as_json()
        if len(content) > limits.PLAN:
            raise UsageError(
                f"the plan of these {len(self.cases)} cases has more than {limits.PLAN} bytes",
                "measure them in several runs: split the matrix, or merge fewer shards at once.",
            )
        whole(path, content)
        self._sha256 = hashlib.sha256(content).hexdigest()

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan. Raises `UsageError` if it is invalid or was altered."""
        try:
            # A copy, because `_read` caches the plan.
            plan = _read(reading.read(path, limits.PLAN)).model_copy()
            plan._refuse_altered()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} is not the plan of a run: {_why(error)}",
                "give the folder that nsabench made.",
            ) from None
        return plan


@lru_cache(maxsize=1)  # a plan may be large, and is read again when the sealed run is verified
def _read(content: bytes) -> Plan:
    plan = Plan.model_validate_json(content)
    plan._sha256 = hashlib.sha256(content).hexdigest()
    return plan


def _why(error: Exception) -> str:
    if isinstance(error, reading.OutOfBounds):
        return f"it {error}"
    if isinstance(error, ValidationError):
        return reading.first_fault(error)
    return str(error).splitlines()[0]
