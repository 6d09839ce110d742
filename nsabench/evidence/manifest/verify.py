"""Verify a run folder check by check, and stop at the first broken check."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import files
from nsabench.evidence.manifest.keys import Revocation, revocations, trust_in
from nsabench.evidence.manifest.logs import Logged, check_log, check_shards, read_log
from nsabench.evidence.manifest.seal import brief_of, brief_plan
from nsabench.evidence.manifest.statement import (
    NOT_SIGNED,
    Predicate,
    ShardSigned,
    Statement,
    Trust,
    is_device,
    read_envelope,
    require_same,
    verify_envelope,
)
from nsabench.evidence.manifest.tables import check_summary, check_tables, derive_tables
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.pairs import describe_mismatch
from nsabench.model.plan import Plan
from nsabench.running.folder import KEPT, MANIFEST, SHARDS, is_run_file
from nsabench.signing.signer import RUN_KEY, read_run_key
from nsabench.verdicts.tables import TABLES

CHECKS = (
    *("folder", "manifest", "signature", "statement", "files", "hashes"),
    *("plan", "environment", "log", "origin", "trust", "tables"),
)


@dataclass
class Report:
    """The outcome of each check: `ok`, `broken`, or `not run`, as after a check that broke."""

    folder: Path
    outcomes: dict[str, str] = field(default_factory=lambda: dict.fromkeys(CHECKS, "not run"))
    details: dict[str, str] = field(default_factory=dict)
    remedy: str = "do not rely on it. Copy an altered run again from where it was made."
    trust: Trust = Trust.UNSIGNED
    keyid: str = ""
    predicate: Predicate | None = None
    digests: dict[str, str] = field(default_factory=dict)
    plan: Plan | None = None
    logged: Logged | None = None

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """Record the outcome of the check in the block. Raises `_Stopped` if it is broken."""
        try:
            yield
        except VerificationFailed as error:
            self.outcomes[name], self.details[name] = "broken", str(error)
            self.remedy = error.remedy or self.remedy
            raise _Stopped from None
        self.outcomes[name] = "ok"

    @property
    def broken(self) -> str | None:
        for check, outcome in self.outcomes.items():
            if outcome == "broken":
                return f"{check}: {self.details[check]}"
        return None

    def raise_if_broken(self) -> None:
        if self.broken:
            raise VerificationFailed(f"{self.folder} fails the check {self.broken}", self.remedy)


def verify(
    folder: Path,
    *,
    trusted: Iterable[str] = (),
    require: Trust = Trust.EPHEMERAL,
    revoked: Mapping[str, Revocation] | None = None,
    tables: bool = True,
) -> Report:
    """Run the checks in the order of `CHECKS`, and stop at the first broken check.

    trusted: ids of the keys that make a run `pinned`.
    require: the lowest trust that passes. With `unsigned`, a run needs no manifest.
    revoked: revoked keys by id; None: those in NSABENCH_REVOKED_KEYS.
    tables: whether to derive tables and thresholds from the log and compare them.
    """
    report = Report(folder)
    keyids = frozenset(trusted)
    revoked = revocations() if revoked is None else revoked
    with suppress(_Stopped):
        with report.check("folder"):
            names = files.listing(folder)
            report.details["folder"] = f"{len(names)} files"
        if MANIFEST in names or require is not Trust.UNSIGNED:
            _check_manifest(report, names)
        else:
            report.details["manifest"] = "there is none"
        plan, logged = _check_contents(report)
        with report.check("trust"):  # tables are not derived from the log of a stranger
            if report.predicate is not None:
                report.trust = trust_in(report.predicate, keyids, revoked, require)
            report.details["trust"] = report.trust
        if tables:
            with report.check("tables"):
                report.details["tables"] = _check_tables(folder, plan, logged, report.predicate)
    if report.outcomes["manifest"] == "broken" and not os.path.lexists(folder / MANIFEST):
        with suppress(VerificationFailed):  # raised if the log is also broken
            _, origin = read_log(folder, read_plan(folder, None))
            if not keyids or origin.keyid in keyids:
                command = f"`nsabench all --resume {folder}`"
                report.remedy = f"finish it where it was begun, with the same key: {command}."
    return report


def refuse_altered(folder: Path, trusted: Iterable[str] = (), *, tables: bool = True) -> Trust:
    """Verify a run unless it is unsigned, and return its trust. tables: as in `verify`."""
    if not os.path.lexists(folder / MANIFEST):
        return Trust.UNSIGNED
    report = verify(folder, trusted=trusted, tables=tables)
    report.raise_if_broken()
    return report.trust


def signed_around(path: Path) -> Path | None:
    """Return the signed run that is `path` or contains it. `path` need not exist."""
    resolved = path.resolve()
    folders = (resolved, *resolved.parents)
    return next((folder for folder in folders if os.path.lexists(folder / MANIFEST)), None)


class _Stopped(Exception):
    """A check broke."""


def _check_manifest(report: Report, names: list[str]) -> None:
    with report.check("manifest"):
        envelope = read_envelope(report.folder)
    with report.check("signature"):
        statement, report.keyid = verify_envelope(envelope)
        report.predicate = statement.predicate
        report.details["signature"] = f"by the key {report.keyid}"
    with report.check("statement"):
        report.digests = _read_digests(statement)
    with report.check("files"):
        _compare_names(report, names)
        report.details["files"] = "none missing, none extra"
    with report.check("hashes"):
        for name, expected in report.digests.items():
            if files.sha256(report.folder, name) != expected:
                raise VerificationFailed(f"{name} was changed after the signature")
        report.details["hashes"] = f"{len(report.digests)} files"


def _check_contents(report: Report) -> tuple[Plan, Logged]:
    folder, predicate = report.folder, report.predicate
    with report.check("plan"):
        report.plan = plan = read_plan(folder, predicate)
        report.details["plan"] = plan.run_id
    with report.check("environment"):
        environment = _check_environment(folder, predicate)
        complete = "complete" if environment.complete else "not complete"
        software = environment.software
        unpaired = describe_mismatch(software.torch, software.triton)
        report.details["environment"] = "; ".join(filter(None, (complete, unpaired)))
    with report.check("log"):
        report.logged = logged = (check_shards if plan.shards else check_log)(folder, plan)
        report.details["log"] = f"{logged.cases} cases"
    with report.check("origin"):
        report.details["origin"] = _check_origin(plan, environment, logged, predicate)
    return plan, logged


def _read_digests(statement: Statement) -> dict[str, str]:
    digests = statement.digests
    if len(digests) != len(statement.subject):
        raise VerificationFailed("the statement names a file twice")
    shards = [shard.run_id for shard in statement.predicate.shards]
    for name in digests:
        if not is_run_file(name, shards):
            raise VerificationFailed(f"the statement names {name[:200]!r}, not a file of a run")
    logs = [f"{SHARDS}/{run_id}/{name}" for run_id in shards for name in KEPT] or ["log.jsonl"]
    for needed in ("plan.json", *logs, *(f"{table}.parquet" for table in TABLES)):
        if needed not in digests:
            raise VerificationFailed(f"the statement does not name {needed}")
    return digests


def _compare_names(report: Report, names: list[str]) -> None:
    there = set(names) - NOT_SIGNED
    for name in sorted(report.digests.keys() - there):
        raise VerificationFailed(f"{name} is missing")
    for name in sorted(there - report.digests.keys()):
        raise VerificationFailed(f"{name} was added after the signature")
    if RUN_KEY in names:  # a run is verified before its ephemeral key is deleted
        try:
            kept = read_run_key(report.folder)
        except UsageError as error:
            raise VerificationFailed(str(error)) from None
        if kept is None or kept.keyid != report.keyid:
            raise VerificationFailed(f"{RUN_KEY} is not the key that signed the run")


def read_plan(folder: Path, predicate: Predicate | None) -> Plan:
    try:
        plan = Plan.read(folder / "plan.json")
    except UsageError as error:
        raise VerificationFailed(f"plan.json: {error}") from None
    if predicate is not None:
        require_same("plan.json: run_id", plan.run_id, predicate.run_id, MANIFEST)
        require_same("plan.json", brief_plan(plan), predicate.plan, MANIFEST)
    return plan


def _check_environment(folder: Path, predicate: Predicate | None) -> Environment:
    with files.readable("environment.json"):
        environment = Environment.read(folder / "environment.json")
    if predicate is not None:
        there = brief_of(environment)
        for name, stated in predicate.environment:
            require_same(f"environment.json: {name}", getattr(there, name), stated, MANIFEST)
    return environment


def _check_origin(
    plan: Plan, environment: Environment, logged: Logged, predicate: Predicate | None
) -> str:
    """Check that the environment and the signers of the manifest fit the log."""
    software, device = logged.described.software, logged.described.device
    torch, gpu, measured = environment.software.torch, environment.gpu, device.name or ""
    if torch is not None:
        require_same("environment.json: torch", torch, software.torch, "the log")
    if plan.device == "cuda" and gpu is not None and not is_device(gpu.name or "", measured):
        require_same("environment.json: the GPU", gpu.name or "", measured, "the log")
    if plan.shards:
        if predicate is not None:
            require_same("the list of its signers", logged.shards, predicate.shards, MANIFEST)
        return describe_signers(logged.shards)
    if predicate is not None:
        signer, key = predicate.signer.keyid, logged.origin.keyid
        require_same("log.jsonl: its key", key, signer, MANIFEST)
    return str(logged.origin)


def _check_tables(folder: Path, plan: Plan, logged: Logged, predicate: Predicate | None) -> str:
    with TemporaryDirectory() as scratch:
        derived = Path(scratch)
        derive_tables(folder, plan, derived)
        if predicate is not None:
            check_summary(derived, predicate)
        return check_tables(folder, derived, plan, logged)


def describe_signers(shards: Sequence[ShardSigned]) -> str:
    named = {
        shard.keyid: "an ephemeral key" if shard.trust is Trust.EPHEMERAL else f"key {shard.keyid}"
        for shard in shards
    }
    by_key = [
        f"{', '.join(s.run_id for s in shards if s.keyid == keyid)} with {name}"
        for keyid, name in named.items()
    ]
    return f"{len(shards)} shards, measured and signed: {'; '.join(by_key)}"
