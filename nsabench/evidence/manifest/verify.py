"""Verify a run folder, check by check; the first that breaks names what is broken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import contents, files
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.keys import Revocation, refuse_revoked, revocations
from nsabench.evidence.manifest.logs import KEPT, Logged, check_log, check_shards, read_log
from nsabench.evidence.manifest.statement import (
    MANIFEST,
    NOT_SIGNED,
    Predicate,
    Statement,
    Trust,
    read_envelope,
    signed,
)
from nsabench.evidence.manifest.tables import (
    TABLES,
    check_comparisons,
    check_records,
    check_samples,
)
from nsabench.model.plan import Plan
from nsabench.running.folder import SHARDS
from nsabench.signing.signer import read_run_key

T = TypeVar("T")

CHECKS = (
    "folder",
    "manifest",
    "signature",
    "statement",
    "files",
    "hashes",
    "plan",
    "environment",
    "log",
    "origin",
    "records",
    "comparisons",
    "samples",
    "trust",
)


@dataclass
class Report:
    """What became of each check: `ok`, `broken`, or `not run` because one before it broke.

    logged: what the log holds, once it is checked. resumable: whether an
    unsigned run was measured in the name of a key that is trusted or kept.
    """

    folder: Path
    outcomes: dict[str, str] = field(default_factory=lambda: dict.fromkeys(CHECKS, "not run"))
    details: dict[str, str] = field(default_factory=dict)
    trust: Trust = Trust.UNSIGNED
    keyid: str = ""
    predicate: Predicate | None = None
    digests: dict[str, str] = field(default_factory=dict)
    plan: Plan | None = None
    logged: Logged | None = None
    resumable: bool = False

    def run(self, check: str, action: Callable[[], T], say: Callable[[T], str] = str) -> T:
        """Run a check. say: what is told of its result. Raises `_Stopped` if it breaks."""
        try:
            result = action()
        except VerificationFailed as error:
            self.outcomes[check], self.details[check] = "broken", str(error)
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
        if not self.broken:
            return
        remedy = "do not rely on it; get the run again from where it was made."
        if self.resumable:
            remedy = (
                "`nsabench all` signs a run at its end, `run` does not: `nsabench all --resume "
                f"{self.folder}`, where it was begun, goes on with it and signs it."
            )
        raise VerificationFailed(
            f"{self.folder} is not what it claims to be: {self.broken}", remedy
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
    tables: whether the Parquet files are read.
    """
    report = Report(folder)
    keyids = frozenset(trusted)
    revoked = revocations() if revoked is None else revoked
    with suppress(_Stopped):
        names = report.run("folder", lambda: _list(folder), lambda n: f"{len(n)} files")
        if MANIFEST in names or require is not Trust.UNSIGNED:
            _check_manifest(report, names)
        else:
            report.details["manifest"] = "there is none"
        _check_contents(report, tables=tables)
        report.run("trust", lambda: _trust(report, keyids, require, revoked))
    if report.outcomes["manifest"] == "broken" and not os.path.lexists(folder / MANIFEST):
        report.resumable = _is_resumable(folder, keyids)
    return report


def refuse_altered(folder: Path, trusted: Iterable[str] = ()) -> Trust:
    """Return how far the run can be trusted, `unsigned` without a manifest. Raises
    `VerificationFailed` if it is signed and was altered."""
    if not os.path.lexists(folder / MANIFEST):
        return Trust.UNSIGNED
    report = verify(folder, trusted=trusted)
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
    envelope = report.run("manifest", lambda: _envelope(report.folder, names), lambda _: "")
    statement, report.keyid = report.run(
        "signature", lambda: signed(envelope), lambda signature: f"by the key {signature[1]}"
    )
    report.predicate = statement.predicate
    digests = report.run("statement", lambda: _subjects(statement, report.keyid), lambda _: "")
    report.digests = digests
    report.run("files", lambda: _compare_names(digests, names))
    report.run("hashes", lambda: _compare_hashes(report.folder, digests))


def _check_contents(report: Report, *, tables: bool) -> None:
    """Check that the files agree with each other and with the manifest."""
    folder, predicate = report.folder, report.predicate
    plan = report.run("plan", lambda: contents.read_plan(folder, predicate), lambda p: p.run_id)
    environment = report.run(
        "environment",
        lambda: contents.check_environment(folder, predicate),
        contents.describe_environment,
    )
    check_logs = check_shards if plan.shards else check_log
    logged = report.run("log", lambda: check_logs(folder, plan))
    report.plan, report.logged = plan, logged
    report.run(
        "origin",
        lambda: contents.check_origin(plan, logged, predicate),
        lambda _: _measured_by(logged, plan),
    )
    if not tables:
        return
    records = report.run(
        "records",
        lambda: check_records(folder, plan, predicate, environment, logged),
        lambda r: f"{len(r)} rows",
    )
    compared = partial(check_comparisons, folder, plan, predicate, records)
    report.run("comparisons", compared, "{} rows".format)
    check = partial(check_samples, folder, plan, predicate, records, logged.samples)
    report.run("samples", check, "{} rows".format)


def _measured_by(logged: Logged, plan: Plan) -> str:
    if plan.shards:
        return f"{len(plan.shards)} shards, each measured with the key that signed it"
    return str(logged.origin)


def _list(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise VerificationFailed(f"{folder} is not a folder")
    return files.listing(folder)


def _envelope(folder: Path, names: list[str]) -> Envelope:
    if MANIFEST not in names:
        raise VerificationFailed(f"there is no {MANIFEST}: the run is unsigned")
    return read_envelope(folder)


def _subjects(statement: Statement, keyid: str) -> dict[str, str]:
    if statement.predicate.signer.keyid != keyid:
        raise VerificationFailed(f"the statement names another key than {keyid}")
    digests = statement.digests
    if len(digests) != len(statement.subject):
        raise VerificationFailed("the statement names a file twice")
    for name in digests:
        if not files.is_safe(name):
            raise VerificationFailed(f"the statement names {name[:200]!r}, which no run holds")
    merged = statement.predicate.plan.shards
    logs = [f"{SHARDS}/{run_id}/{name}" for run_id in merged for name in KEPT] or ["log.jsonl"]
    for needed in ("plan.json", *logs, *(f"{table}.parquet" for table in TABLES)):
        if needed not in digests:
            raise VerificationFailed(f"the statement does not speak of {needed}")
    return digests


def _compare_names(digests: dict[str, str], names: list[str]) -> str:
    there = set(names) - NOT_SIGNED
    for name in sorted(digests.keys() - there):
        raise VerificationFailed(f"{name} is missing")
    for name in sorted(there - digests.keys()):
        raise VerificationFailed(f"{name} was added after the signature")
    return "none missing, none extra"


def _compare_hashes(folder: Path, digests: dict[str, str]) -> str:
    for name, expected in digests.items():
        if files.sha256(folder, name) != expected:
            raise VerificationFailed(f"{name} was changed after the signature")
    return f"{len(digests)} files"


def _is_resumable(folder: Path, trusted: frozenset[str]) -> bool:
    try:
        plan = contents.read_plan(folder, None)
        _, origin = read_log(folder, plan)
    except VerificationFailed:
        return False
    kept = read_run_key(folder)
    known = trusted | ({kept.keyid} if kept is not None else set())
    return origin.keyid in known


def _trust(
    report: Report, trusted: frozenset[str], require: Trust, revoked: Mapping[str, Revocation]
) -> Trust:
    if report.predicate is not None:
        refuse_revoked(report.keyid, report.predicate.signed, revoked)
        report.trust = Trust.PINNED if report.keyid in trusted else report.predicate.signer.trust
    if not report.trust.reaches(require):
        raise VerificationFailed(f"the run is {report.trust} and {require} is required")
    return report.trust
