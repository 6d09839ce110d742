"""Verify a run folder, check by check; the first that breaks names what is broken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import files
from nsabench.evidence.manifest.keys import Revocation, refuse_less, revocations, trust_in
from nsabench.evidence.manifest.logs import Logged, check_log, check_shards, read_log
from nsabench.evidence.manifest.seal import brief_of, brief_plan
from nsabench.evidence.manifest.statement import (
    NOT_SIGNED,
    Predicate,
    Statement,
    Trust,
    is_device,
    read_envelope,
    require_same,
    signed,
)
from nsabench.evidence.manifest.tables import check_summary, check_tables, derive_tables
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.pairs import belongs
from nsabench.model.plan import Plan
from nsabench.reading import OutOfBounds
from nsabench.running.folder import KEPT, MANIFEST, SHARDS, is_run_file
from nsabench.signing.signer import RUN_KEY, read_run_key
from nsabench.verdicts.parquet import TABLES

T = TypeVar("T")

CHECKS = (
    *("folder", "manifest", "signature", "statement", "files", "hashes"),
    *("plan", "environment", "log", "origin", "trust", "tables"),
)


@dataclass
class Report:
    """What became of each check: `ok`, `broken`, or `not run` because one before it broke.

    remedy: of the broken check. logged: what the log holds, once it is checked.
    """

    folder: Path
    outcomes: dict[str, str] = field(default_factory=lambda: dict.fromkeys(CHECKS, "not run"))
    details: dict[str, str] = field(default_factory=dict)
    remedy: str = "do not rely on it; get the run again from where it was made."
    trust: Trust = Trust.UNSIGNED
    keyid: str = ""
    predicate: Predicate | None = None
    digests: dict[str, str] = field(default_factory=dict)
    plan: Plan | None = None
    logged: Logged | None = None

    def run(self, check: str, action: Callable[[], T], say: Callable[[T], str] = str) -> T:
        """Run a check. say: what is told of its result. Raises `_Stopped` if it breaks."""
        try:
            result = action()
        except VerificationFailed as error:
            self.outcomes[check], self.details[check] = "broken", str(error)
            self.remedy = error.remedy or self.remedy
            raise _Stopped from None
        self.outcomes[check], self.details[check] = "ok", say(result)
        return result

    @property
    def broken(self) -> str | None:
        """The first broken check, as a sentence."""
        for check, outcome in self.outcomes.items():
            if outcome == "broken":
                return f"{check}: {self.details[check]}"
        return None

    def raise_if_broken(self) -> None:
        """Raise `VerificationFailed` with the first broken check."""
        if self.broken:
            raise VerificationFailed(
                f"{self.folder} is not what it claims to be: {self.broken}", self.remedy
            )


def verify(
    folder: Path,
    *,
    trusted: Iterable[str] = (),
    require: Trust = Trust.EPHEMERAL,
    revoked: Mapping[str, Revocation] | None = None,
    tables: bool = True,
) -> Report:
    """Run the checks in the order of `CHECKS` and stop at the first that breaks.

    trusted: ids of the keys that make a run `pinned`.
    require: the least trust that passes. With `unsigned`, a run without a manifest passes if its
        files agree with each other.
    revoked: keys that no longer count. None: those that NSABENCH_REVOKED_KEYS lists.
    tables: whether the tables are derived from the log and compared.
    """
    report = Report(folder)
    keyids = frozenset(trusted)
    revoked = revocations() if revoked is None else revoked
    with suppress(_Stopped):
        names = report.run("folder", lambda: files.listing(folder), lambda n: f"{len(n)} files")
        if MANIFEST in names or require is not Trust.UNSIGNED:
            _check_manifest(report, names)
        else:
            report.details["manifest"] = "there is none"
        plan, logged = _check_contents(report)
        # Before much is computed of what a stranger made.
        report.run("trust", lambda: _trust(report, keyids, require, revoked))
        if tables:
            report.run("tables", lambda: _check_tables(folder, plan, logged, report.predicate))
    if report.outcomes["manifest"] == "broken" and _is_resumable(folder, keyids):
        report.remedy = (
            "`nsabench all` signs a run at its end, `run` does not: `nsabench all --resume "
            f"{folder}`, where it was begun, goes on with it and signs it."
        )
    return report


def refuse_altered(folder: Path, trusted: Iterable[str] = (), *, tables: bool = True) -> Trust:
    """Return how far the run can be trusted, `unsigned` without a manifest. Raises
    `VerificationFailed` if it is signed and was altered. tables: as of `verify`."""
    if not os.path.lexists(folder / MANIFEST):
        return Trust.UNSIGNED
    report = verify(folder, trusted=trusted, tables=tables)
    report.raise_if_broken()
    return report.trust


def signed_around(path: Path) -> Path | None:
    """Return the signed run that `path` is, or is in. `path` itself need not exist."""
    whole = path.resolve()
    folders = (whole, *whole.parents)
    return next((folder for folder in folders if os.path.lexists(folder / MANIFEST)), None)


class _Stopped(Exception):
    """A check broke; the report says which and why."""


def _check_manifest(report: Report, names: list[str]) -> None:
    """Check the signature, and that every file is what was signed."""
    envelope = report.run("manifest", lambda: read_envelope(report.folder), lambda _: "")
    statement, report.keyid = report.run(
        "signature", lambda: signed(envelope), lambda signature: f"by the key {signature[1]}"
    )
    report.predicate = statement.predicate
    digests = report.run("statement", lambda: _subjects(statement), lambda _: "")
    report.digests = digests
    report.run("files", lambda: _compare_names(report, names))
    report.run("hashes", lambda: _compare_hashes(report.folder, digests))


def _check_contents(report: Report) -> tuple[Plan, Logged]:
    """Check that plan, environment and log agree with each other and with the manifest."""
    folder, predicate = report.folder, report.predicate
    plan = report.run("plan", lambda: read_plan(folder, predicate), lambda p: p.run_id)
    environment = report.run(
        "environment", lambda: _check_environment(folder, predicate), _describe_environment
    )
    check_logs = check_shards if plan.shards else check_log
    logged = report.run("log", lambda: check_logs(folder, plan), lambda log: f"{log.cases} cases")
    report.plan, report.logged = plan, logged
    report.run("origin", lambda: _check_origin(plan, environment, logged, predicate))
    return plan, logged


def _subjects(statement: Statement) -> dict[str, str]:
    digests = statement.digests
    if len(digests) != len(statement.subject):
        raise VerificationFailed("the statement names a file twice")
    for name in digests:
        if not is_run_file(name):
            raise VerificationFailed(f"the statement names {name[:200]!r}, which no run holds")
    merged = statement.predicate.plan.shards
    logs = [f"{SHARDS}/{run_id}/{name}" for run_id in merged for name in KEPT] or ["log.jsonl"]
    for needed in ("plan.json", *logs, *(f"{table}.parquet" for table in TABLES)):
        if needed not in digests:
            raise VerificationFailed(f"the statement does not speak of {needed}")
    return digests


def _compare_names(report: Report, names: list[str]) -> str:
    there = set(names) - NOT_SIGNED
    for name in sorted(report.digests.keys() - there):
        raise VerificationFailed(f"{name} is missing")
    for name in sorted(there - report.digests.keys()):
        raise VerificationFailed(f"{name} was added after the signature")
    if RUN_KEY in names:  # it is there while a run is signed
        try:
            kept = read_run_key(report.folder)
        except UsageError as error:
            raise VerificationFailed(str(error)) from None
        if kept is None or kept.keyid != report.keyid:
            raise VerificationFailed(f"{RUN_KEY} is not the key that signed")
    return "none missing, none extra"


def _compare_hashes(folder: Path, digests: dict[str, str]) -> str:
    for name, expected in digests.items():
        if files.sha256(folder, name) != expected:
            raise VerificationFailed(f"{name} was changed after the signature")
    return f"{len(digests)} files"


def read_plan(folder: Path, predicate: Predicate | None) -> Plan:
    """Return the plan, once its cases hash to their ids and it is the plan that was signed."""
    try:
        plan = Plan.read(folder / "plan.json")
    except UsageError as error:
        raise VerificationFailed(f"plan.json: {error}") from None
    if predicate is not None:
        require_same("plan.json: run_id", plan.run_id, predicate.run_id)
        require_same("plan.json", brief_plan(plan), predicate.plan)
    return plan


def _check_environment(folder: Path, predicate: Predicate | None) -> Environment:
    try:
        environment = Environment.read(folder / "environment.json")
    except OSError as error:
        raise VerificationFailed(f"environment.json cannot be read: {error.strerror}") from None
    except OutOfBounds as error:
        raise VerificationFailed(f"environment.json {error}") from None
    if predicate is not None:
        there = brief_of(environment)
        for name, stated in predicate.environment:
            require_same(f"environment.json: {name}", getattr(there, name), stated)
    return environment


def _describe_environment(environment: Environment) -> str:
    """Return for example `complete; unpaired: this torch belongs with triton 3.7.1`."""
    brief = brief_of(environment)
    complete = "complete" if environment.complete else "not complete"
    return "; ".join(filter(None, (complete, belongs(brief.torch, brief.triton))))


def _check_origin(
    plan: Plan, environment: Environment, logged: Logged, predicate: Predicate | None
) -> str:
    """Check that one key measured and signed, and that the environment is what the log says. In a
    merged run, `check_shards` has checked the key of each shard."""
    software, device = logged.described.software, logged.described.device
    torch, gpu, measured = environment.software.torch, environment.gpu, device.name or ""
    if torch is not None:
        require_same("environment.json: torch, by the log,", torch, software.torch)
    if plan.device == "cuda" and gpu is not None and not is_device(gpu.name or "", measured):
        require_same("environment.json: the GPU, by the log,", gpu.name or "", measured)
    if plan.shards:
        return f"{len(plan.shards)} shards, each measured with the key that signed it"
    if predicate is not None:
        signer, key = predicate.signer.keyid, logged.origin.keyid
        require_same("log.jsonl: the key that it is signed with", key, signer)
    return str(logged.origin)


def _check_tables(folder: Path, plan: Plan, logged: Logged, predicate: Predicate | None) -> str:
    with TemporaryDirectory() as scratch:
        derived = Path(scratch)
        derive_tables(folder, plan, logged.outlying, derived)
        if predicate is not None:
            check_summary(derived, predicate)
        return check_tables(folder, derived, plan, logged)


def _is_resumable(folder: Path, trusted: frozenset[str]) -> bool:
    """Return whether an unsigned run was measured in the name of a key that is trusted or kept."""
    if os.path.lexists(folder / MANIFEST):
        return False
    try:
        _, origin = read_log(folder, read_plan(folder, None))
        kept = read_run_key(folder)
    except (UsageError, VerificationFailed):
        return False
    return origin.keyid in trusted | ({kept.keyid} if kept is not None else set())


def _trust(
    report: Report, trusted: frozenset[str], require: Trust, revoked: Mapping[str, Revocation]
) -> Trust:
    if report.predicate is not None:
        report.trust = trust_in(report.predicate, trusted, revoked)
    refuse_less(report.trust, require)
    return report.trust
