"""Adding runs to an archive, listing them, and verifying what lies in one."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from nsabench import limits, reading
from nsabench.errors import VerificationFailed
from nsabench.evidence.archive.seen import Seen, Table, look, sha256
from nsabench.evidence.archive.seen import key as seen_key
from nsabench.evidence.archive.store import Store
from nsabench.evidence.manifest import MANIFEST, summary, verify
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.keys import Revocation, refuse_revoked, revocations
from nsabench.evidence.manifest.statement import Predicate, Statement, Trust
from nsabench.evidence.manifest.verify import signed

TABLES = ("records", "samples", "bursts")
MOST_ROWS = {"records": limits.RECORDS, "samples": limits.SAMPLES, "bursts": limits.SAMPLES}
READERS = 16  # requests that are under way at once


class Added(StrEnum):
    """What became of a run that was to be added."""

    ADDED = "added"
    THERE = "already there"


@dataclass(frozen=True)
class ArchivedRun:
    """A whole run of an archive. `prefix` ends in `/`. trust: pinned where its key is trusted."""

    prefix: str
    statement: Statement
    trust: Trust

    @property
    def run_id(self) -> str:
        return self.statement.predicate.run_id

    def digest(self, table: str) -> str:
        """Raises `VerificationFailed` when the run was signed without it."""
        try:
            return self.statement.digests[f"{table}.parquet"]
        except KeyError:
            raise VerificationFailed(f"its manifest names no {table}.parquet") from None

    def object(self, table: str) -> str:
        """Name of the object that holds a table of the run."""
        return self.prefix + object_name(table, self.digest(table))


@dataclass(frozen=True)
class Surveyed:
    """What lies in an archive. sound: by id, each verified; broken: a sentence each; stray: objects
    without a manifest."""

    sound: list[ArchivedRun]
    broken: list[str]
    stray: int


class Archive:
    """Raises `UsageError` or `EnvironmentRefused` where there is none to be reached."""

    def __init__(self, location: str, *, create: bool = False) -> None:
        self.store = Store(location, create=create)

    def add(
        self, run: Path, *, trusted: Iterable[str] = (), require: Trust = Trust.EPHEMERAL
    ) -> tuple[Added, str]:
        """Verify a run and copy it. Adding it again changes nothing. Returns also its prefix.

        Raises `VerificationFailed` when the run is not what it claims to be, or when another run
        with the same id is there already.
        """
        report = verify(run, trusted=trusted, require=require)
        report.raise_if_broken()
        if report.predicate is None:
            raise VerificationFailed(f"{run} is unsigned", "an archive keeps signed runs only.")
        predicate = report.predicate
        prefix = _prefix(predicate)
        manifest = reading.read(run / MANIFEST, limits.MANIFEST)
        for name in self.store.names():
            if name.endswith(f"/run={predicate.run_id}/{MANIFEST}") and name != prefix + MANIFEST:
                self._refuse_another(predicate.run_id)
        tables = {}
        for table in TABLES:
            data = reading.read(run / f"{table}.parquet", limits.TABLE)
            digest = hashlib.sha256(data).hexdigest()
            if digest != report.digests[f"{table}.parquet"]:
                raise VerificationFailed(f"{run}/{table}.parquet changed while it was read")
            tables[prefix + object_name(table, digest)] = data
        for name, data in tables.items():
            self.store.create(name, data)
        added = self.store.create(prefix + MANIFEST, manifest)
        if not added and self.store.read(prefix + MANIFEST, limits.MANIFEST) != manifest:
            self._refuse_another(predicate.run_id)
        # What an earlier writer had left may have been removed since it was found there.
        for name in tables.keys() - set(self.store.names()):
            self.store.create(name, tables[name])
        return Added.ADDED if added else Added.THERE, prefix

    def _refuse_another(self, run_id: str) -> NoReturn:
        raise VerificationFailed(
            f"another run with the id {run_id} is in {self.store.location}",
            "a run that was resumed or signed again is another one; keep one of them.",
        )

    def runs(self, trusted: frozenset[str] = frozenset()) -> list[ArchivedRun]:
        """All sound runs, by id."""
        return self.survey(trusted).sound

    def survey(
        self, trusted: frozenset[str] = frozenset(), require: Trust = Trust.EPHEMERAL
    ) -> Surveyed:
        """Verify everything that lies here: signatures, hashes, and that what a manifest says in
        brief is what the tables say. A table that was seen before is not read again."""
        stamps = self.store.stamps()
        manifests = [n for n in stamps if n.endswith("/" + MANIFEST)]
        seen, revoked = Seen(), revocations()

        def checked(name: str) -> ArchivedRun | str:
            try:
                return self._check(name, stamps, seen, trusted, revoked, require)
            except VerificationFailed as error:
                return f"{name.removesuffix('/' + MANIFEST)}: {error}"

        with ThreadPoolExecutor(READERS) as pool:
            looked = list(pool.map(checked, sorted(manifests)))
        seen.keep()
        runs = [one for one in looked if isinstance(one, ArchivedRun)]
        broken = [one for one in looked if isinstance(one, str)]
        # Each alone may be sound; to answer with both would count a run twice.
        times = Counter(run.run_id for run in runs)
        broken += [
            f"{run.prefix.removesuffix('/')}: the run {run.run_id} is in the archive "
            f"{times[run.run_id]} times"
            for run in runs
            if times[run.run_id] > 1
        ]
        sound = sorted((r for r in runs if times[r.run_id] == 1), key=lambda run: run.run_id)
        whole = {n.removesuffix(MANIFEST) for n in manifests}
        stray = sum(n.rpartition("/")[0] + "/" not in whole for n in stamps)
        return Surveyed(sound, broken, stray)

    def _check(
        self,
        name: str,
        stamps: Mapping[str, str],
        seen: Seen,
        trusted: frozenset[str],
        revoked: Mapping[str, Revocation],
        require: Trust,
    ) -> ArchivedRun:
        envelope = Envelope.parse(self.store.read(name, limits.MANIFEST))
        statement, keyid = signed(envelope)
        predicate = statement.predicate
        trust = Trust.PINNED if keyid in trusted else predicate.signer.trust
        run = ArchivedRun(name.removesuffix(MANIFEST), statement, trust)
        if f"/run={predicate.run_id}/" not in "/" + run.prefix:
            raise VerificationFailed(f"it holds the run {predicate.run_id}")
        if not f"/{run.prefix}".endswith(f"/{_prefix(predicate)}"):
            raise VerificationFailed(f"it belongs under {_prefix(predicate)}")
        if predicate.signer.keyid != keyid:
            raise VerificationFailed(f"its statement names another key than {keyid}")
        refuse_revoked(keyid, predicate.signed, revoked)
        if not trust.reaches(require):
            raise VerificationFailed(f"it is {trust} and {require} is required")
        for table in TABLES:
            found = self._look(run, table, stamps, seen)
            _agree(predicate, table, getattr(predicate, table), found)
            if table == "records":
                if found.stated is None:
                    raise VerificationFailed("records.parquet has no column gpu_name")
                summary.check(found.stated, predicate)
        return run

    def _look(self, run: ArchivedRun, table: str, stamps: Mapping[str, str], seen: Seen) -> Table:
        name, changed = run.object(table), f"{table}.parquet was changed after the signature"
        if name not in stamps:
            raise VerificationFailed(f"{name} is missing")
        known = seen_key(self.store.location, name, stamps[name])
        found = seen.get(known)
        if found is None:
            with TemporaryDirectory() as scratch:
                path = self.store.as_file(name, Path(scratch), limits.TABLE)
                if sha256(path) != run.digest(table):
                    raise VerificationFailed(changed)  # before it is opened
                found = look(path, run.digest(table), MOST_ROWS[table])
            seen.put(known, found)
        if found.sha256 != run.digest(table):
            raise VerificationFailed(changed)
        return found


def _agree(predicate: Predicate, table: str, rows: int, found: Table) -> None:
    """Raises `VerificationFailed` when the summary says another thing than the table."""
    if found.rows != rows:
        raise VerificationFailed(f"{table}.parquet has {found.rows} rows, signed are {rows}")
    if not set(found.run_ids) <= {predicate.run_id}:
        raise VerificationFailed(f"{table}.parquet is of another run than {predicate.run_id}")
    gpu = predicate.environment.gpu
    if gpu and not all(summary.is_device(gpu, measured) for measured in found.gpus):
        raise VerificationFailed(f"{table}.parquet is of {', '.join(found.gpus)}, signed is {gpu}")


def _prefix(predicate: Predicate) -> str:
    gpu = re.sub(r"[^A-Za-z0-9.-]+", "_", predicate.environment.gpu or "") or "none"
    return f"schema={predicate.results_schema}/gpu={gpu}/run={predicate.run_id}/"


def object_name(table: str, digest: str) -> str:
    return f"{table}-{digest[:16]}.parquet"
