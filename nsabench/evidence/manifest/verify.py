"""Verifying a run folder, check by check; the first that fails names what is broken."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nsabench import limits, reading
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import contents, files
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.journaled import Journaled, check_journal, read_journal
from nsabench.evidence.manifest.keys import Revocation, refuse_revoked, revocations
from nsabench.evidence.manifest.known import NOTHING, Known
from nsabench.evidence.manifest.seal import MANIFEST
from nsabench.evidence.manifest.statement import Predicate, Statement, Trust
from nsabench.execution.chain import Origin
from nsabench.model.journal import Line
from nsabench.model.plan import Plan
from nsabench.signing.keys import public_key_of_der
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
    "journal",
    "origin",
    "records",
    "samples",
    "bursts",
    "trust",
)


@dataclass
class Report:
    """What became of each check: `ok`, `broken`, or `not run` because an earlier one broke."""

    folder: Path
    outcomes: dict[str, str] = field(default_factory=lambda: dict.fromkeys(CHECKS, "not run"))
    details: dict[str, str] = field(default_factory=dict)
    trust: Trust = Trust.UNSIGNED
    keyid: str = ""
    predicate: Predicate | None = None
    digests: dict[str, str] = field(default_factory=dict)
    plan: Plan | None = None
    origin: Origin | None = None  # who measured, by the journal; None for a merged run
    journaled: Journaled | None = None
    # Whether an unsigned run can be gone on with, as far as can be told here.
    resumable: bool = False

    @property
    def broken(self) -> str | None:
        """The first broken thing, as a sentence."""
        for check, outcome in self.outcomes.items():
            if outcome == "broken":
                return f"{check}: {self.details[check]}"
        return None

    def raise_if_broken(self) -> None:
        """Raises `VerificationFailed` with the first broken thing."""
        if not self.broken:
            return
        remedy = "do not rely on it; get the run again from where it was made."
        if self.resumable:
            remedy = (
                "`nsabench all` signs a run at its end, `run` does not; this one was measured in "
                f"the name of a key of yours: `nsabench all --resume {self.folder}`, where it was "
                "begun, goes on with it and signs it."
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
    begun: Callable[[str], None] = lambda _: None,
    tables: bool = True,
    seen: Callable[[Line], None] | None = None,
    known: Known = NOTHING,
) -> Report:
    """Run the checks in the order of `CHECKS` and stop at the first that breaks.

    trusted: ids of the keys that make a run `pinned`. require: the least trust that passes; with
    `unsigned`, a run without a manifest passes if its files agree with each other. revoked: keys
    that no longer count; None: those that NSABENCH_REVOKED_KEYS lists. begun: called with each
    check as it begins. tables: whether the Parquet files are read. seen: called with each line of
    the journal of a run that is not merged. known: the shards of a merged run that were verified
    before; files that are theirs to the byte are not read again.
    """
    report = Report(folder)
    keyids = frozenset(trusted)
    revoked = revocations() if revoked is None else revoked
    with suppress(_Stopped):
        _verify(report, keyids, require, revoked, begun, tables, seen, known)
    if report.outcomes["manifest"] == "broken" and not os.path.lexists(folder / MANIFEST):
        report.resumable = _is_resumable(folder, keyids)
    return report


def refuse_altered(folder: Path, trusted: Iterable[str] = ()) -> Trust:
    """How far the run can be trusted, `unsigned` without a manifest. Raises `VerificationFailed`
    when it is signed and not as it was signed."""
    if not os.path.lexists(folder / MANIFEST):
        return Trust.UNSIGNED
    report = verify(folder, trusted=trusted)
    report.raise_if_broken()
    return report.trust


def signed_around(path: Path) -> Path | None:
    """The signed run that `path` is or lies in, if there is one; `path` itself need not exist."""
    whole = path.resolve()
    folders = (whole, *whole.parents)
    return next((folder for folder in folders if os.path.lexists(folder / MANIFEST)), None)


class _Stopped(Exception):
    """A check broke; the report says which and why."""


def _verify(
    report: Report,
    trusted: frozenset[str],
    require: Trust,
    revoked: Mapping[str, Revocation],
    begun: Callable[[str], None],
    tables: bool,
    seen: Callable[[Line], None] | None,
    known: Known,
) -> None:
    folder = report.folder

    def run(check: str, action: Callable[[], T], say: Callable[[T], str] = lambda _: "") -> T:
        begun(check)
        try:
            result = action()
        except VerificationFailed as error:
            report.outcomes[check], report.details[check] = "broken", str(error)
            raise _Stopped from None
        report.outcomes[check], report.details[check] = "ok", say(result)
        return result

    names = run("folder", lambda: _listing(folder), lambda n: f"{len(n)} files")
    if MANIFEST in names or require is not Trust.UNSIGNED:
        envelope = run("manifest", lambda: _envelope(folder, names))
        statement, report.keyid = run(
            "signature", lambda: signed(envelope), lambda signature: f"by the key {signature[1]}"
        )
        report.predicate = statement.predicate
        report.digests = run("statement", lambda: _subjects(statement, report.keyid))
        run("files", lambda: _files(report.digests, names), lambda _: "none missing, none extra")
        run("hashes", lambda: _hashes(folder, report.digests), lambda n: f"{n} files")
    else:
        report.details["manifest"] = "there is none"
    predicate = report.predicate
    plan = run("plan", lambda: contents.read_plan(folder, predicate), lambda p: p.run_id)
    report.plan = plan
    environment = run(
        "environment",
        lambda: contents.check_environment(folder, predicate),
        contents.said_of_environment,
    )
    journaled = run("journal", lambda: check_journal(folder, plan, seen, known.journals(plan)), str)
    report.origin, report.journaled = journaled.origin, journaled
    run(
        "origin",
        lambda: contents.check_origin(folder, plan, journaled, predicate, known.plans()),
        lambda _: _measured_by(report, plan),
    )
    if tables:
        records = run(
            "records",
            lambda: contents.check_records(folder, plan, predicate, environment, journaled),
            lambda r: _rows(len(r)),
        )
        run(
            "samples",
            lambda: contents.check_samples(folder, plan, predicate, records, journaled.samples),
            _rows,
        )
        run(
            "bursts",
            lambda: contents.check_bursts(folder, plan, predicate, records, journaled.bursts),
            _rows,
        )
    run(
        "trust",
        lambda: _trust(report, trusted, require, revoked),
        lambda trust: trust.value,
    )


def _measured_by(report: Report, plan: Plan) -> str:
    if plan.shards:
        return f"{len(plan.shards)} shards, each vouched for by the key that signed it"
    return str(report.origin)


def _listing(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise VerificationFailed(f"{folder} is no folder")
    return files.listing(folder)


def _envelope(folder: Path, names: list[str]) -> Envelope:
    if MANIFEST not in names:
        raise VerificationFailed(f"there is no {MANIFEST}: the run is unsigned")
    return read_envelope(folder)


def read_envelope(folder: Path) -> Envelope:
    """Raises `VerificationFailed` when the manifest cannot be read or is none."""
    try:
        return Envelope.parse(reading.read(folder / MANIFEST, limits.MANIFEST))
    except OSError as error:
        raise VerificationFailed(f"{MANIFEST} cannot be read: {error.strerror}") from None
    except reading.OutOfBounds as error:
        raise VerificationFailed(f"{MANIFEST} {error}") from None


def signed(envelope: Envelope) -> tuple[Statement, str]:
    """The statement and the id of the key that it carries, once that key's signature fits.

    Raises `VerificationFailed` when it does not.
    """
    statement = Statement.parse(envelope.content())
    signer = statement.predicate.signer
    try:
        key = public_key_of_der(base64.b64decode(signer.public_key, validate=True))
    except (binascii.Error, ValueError) as error:
        raise VerificationFailed(f"the manifest's public key cannot be read: {error}") from None
    return statement, envelope.check(key)


def _subjects(statement: Statement, keyid: str) -> dict[str, str]:
    if statement.predicate.signer.keyid != keyid:
        raise VerificationFailed(f"the statement names another key than {keyid}")
    digests = statement.digests
    if len(digests) != len(statement.subject):
        raise VerificationFailed("the statement names a file twice")
    for name in digests:
        if not files.is_safe(name):
            raise VerificationFailed(f"the statement names {name[:200]!r}, which no run holds")
    tables = ("records.parquet", "samples.parquet", "bursts.parquet")
    for needed in ("plan.json", "journal.jsonl", *tables):
        if needed not in digests:
            raise VerificationFailed(f"the statement does not speak of {needed}")
    return digests


def _files(digests: dict[str, str], names: list[str]) -> None:
    there = set(names) - {MANIFEST}
    for name in sorted(digests.keys() - there):
        raise VerificationFailed(f"{name} is missing")
    for name in sorted(there - digests.keys()):
        raise VerificationFailed(f"{name} was added after the signature")


def _hashes(folder: Path, digests: dict[str, str]) -> int:
    for name, expected in digests.items():
        if files.sha256(folder, name) != expected:
            raise VerificationFailed(f"{name} was changed after the signature")
    return len(digests)


def _is_resumable(folder: Path, trusted: frozenset[str]) -> bool:
    """Whether a key that is trusted, or kept in the folder, vouches for an unsigned journal."""
    try:
        plan = contents.read_plan(folder, None)
        origin = read_journal(folder, plan).origin
    except VerificationFailed:
        return False
    if origin is None:
        return False
    kept = read_run_key(folder)
    return origin.keyid in trusted or (kept is not None and kept.keyid == origin.keyid)


def _rows(count: int) -> str:
    return f"{count} rows"


def _trust(
    report: Report,
    trusted: frozenset[str],
    require: Trust,
    revoked: Mapping[str, Revocation],
) -> Trust:
    if report.predicate is not None:
        refuse_revoked(report.keyid, report.predicate.signed, revoked)
        report.trust = Trust.PINNED if report.keyid in trusted else report.predicate.signer.trust
    if not report.trust.reaches(require):
        raise VerificationFailed(f"the run is {report.trust} and {require} is required")
    return report.trust
