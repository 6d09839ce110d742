"""Add runs to an archive, list them and verify them."""

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

import pyarrow.compute as pc

from nsabench import limits, reading
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.archive.seen import Seen, key_of
from nsabench.evidence.archive.store import Store
from nsabench.evidence.manifest import MANIFEST, Report, files, verify
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.keys import Revocation, refuse_less, revocations, trust_in
from nsabench.evidence.manifest.statement import (
    Predicate,
    Statement,
    Trust,
    is_device,
    require_same,
    signed,
)
from nsabench.evidence.manifest.tables import check_summary, readable, refuse_misfit
from nsabench.model.record import Record
from nsabench.verdicts.tables import TABLES, batches, records_in

READERS = 16  # requests at once


class Added(StrEnum):
    ADDED = "added"
    THERE = "already there"


@dataclass(frozen=True)
class ArchivedRun:
    """A complete run of an archive. prefix: of the names of its objects, ends in `/`."""

    prefix: str
    statement: Statement
    trust: Trust

    @property
    def run_id(self) -> str:
        return self.statement.predicate.run_id

    def digest(self, table: str) -> str:
        try:
            return self.statement.digests[f"{table}.parquet"]
        except KeyError:
            raise VerificationFailed(f"its manifest names no {table}.parquet") from None

    def object(self, table: str) -> str:
        return self.prefix + object_name(table, self.digest(table))


@dataclass(frozen=True)
class Surveyed:
    """broken: a sentence about each run that is not sound. stray: objects without a manifest."""

    sound: list[ArchivedRun]
    broken: list[str]
    stray: int


class Archive:
    """Verified runs in a store."""

    def __init__(self, location: str, *, create: bool = False) -> None:
        self.store = Store(location, create=create)

    def add(
        self, run: Path, *, trusted: Iterable[str] = (), require: Trust = Trust.EPHEMERAL
    ) -> tuple[Added, str]:
        """Verify a run, copy it, and return whether it was new, and its prefix."""
        report = verify(run, trusted=trusted, require=require)
        report.raise_if_broken()
        return self.add_verified(report)

    def add_verified(self, report: Report) -> tuple[Added, str]:
        """Copy a verified run. Raises `VerificationFailed` if its id is taken by another run."""
        run, predicate = report.folder, report.predicate
        if predicate is None:
            raise VerificationFailed(f"{run} is unsigned", "an archive keeps signed runs only.")
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
        return Added.ADDED if added else Added.THERE, prefix

    def _refuse_another(self, run_id: str) -> NoReturn:
        raise VerificationFailed(
            f"another run with the id {run_id} is in {self.store.location}",
            "a run that was resumed or signed again is another one; keep one of them.",
        )

    def runs(self, trusted: frozenset[str] = frozenset()) -> list[ArchivedRun]:
        return self.survey(trusted).sound

    def survey(
        self, trusted: frozenset[str] = frozenset(), require: Trust = Trust.EPHEMERAL
    ) -> Surveyed:
        """Verify all runs. Tables that were verified before are not read again."""
        stamps = self.store.stamps()
        manifests = [n for n in stamps if n.endswith("/" + MANIFEST)]
        seen, revoked = Seen(), revocations()

        def checked(name: str) -> ArchivedRun | str:
            try:
                return self._check(name, stamps, seen, trusted, revoked, require)
            except VerificationFailed as error:
                return f"{name.removesuffix('/' + MANIFEST)}: {error}"

        with ThreadPoolExecutor(READERS) as pool:
            results = list(pool.map(checked, sorted(manifests)))
        seen.keep()
        runs = [run for run in results if isinstance(run, ArchivedRun)]
        broken = [sentence for sentence in results if isinstance(sentence, str)]
        # A query over two copies of a run would count it twice.
        times = Counter(run.run_id for run in runs)
        broken += [
            f"{run.prefix.removesuffix('/')}: the run {run.run_id} is in the archive "
            f"{times[run.run_id]} times"
            for run in runs
            if times[run.run_id] > 1
        ]
        sound = sorted((r for r in runs if times[r.run_id] == 1), key=lambda run: run.run_id)
        complete = {n.removesuffix(MANIFEST) for n in manifests}
        stray = sum(n.rpartition("/")[0] + "/" not in complete for n in stamps)
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
        manifest = self.store.read(name, limits.MANIFEST)
        statement, _ = signed(Envelope.parse(manifest))
        predicate = statement.predicate
        trust = trust_in(predicate, trusted, revoked)
        refuse_less(trust, require)
        run = ArchivedRun(name.removesuffix(MANIFEST), statement, trust)
        if not f"/{run.prefix}".endswith(f"/{_prefix(predicate)}"):
            raise VerificationFailed(f"it belongs under {_prefix(predicate)}")
        stored = [run.object(table) for table in TABLES]
        for name in stored:
            if name not in stamps:
                raise VerificationFailed(f"{name} is missing")
        digest = hashlib.sha256(manifest).hexdigest()
        key = key_of(digest, self.store.location, *(f"{n} {stamps[n]}" for n in stored))
        if key not in seen:
            with TemporaryDirectory() as scratch:
                for table in TABLES:
                    path = self.store.as_file(run.object(table), Path(scratch), limits.TABLE)
                    _refuse_changed(path, run, table)  # before it is opened
                    Path(scratch, f"{table}.parquet").symlink_to(path)
                _check_tables(Path(scratch), predicate)
            seen.add(key)
        return run

    def file(self, run: ArchivedRun, table: str, scratch: Path) -> Path:
        """Return a table of a verified run as a file."""
        path = self.store.as_file(run.object(table), scratch, limits.TABLE)
        if self.store.folder is None:  # the object may have been replaced after the survey
            _refuse_changed(path, run, table)
        return path

    def records(self, run: ArchivedRun) -> list[Record]:
        with TemporaryDirectory() as scratch:
            tables = ("records", "comparisons")
            return records_in(*(self.file(run, table, Path(scratch)) for table in tables))


def _check_tables(folder: Path, predicate: Predicate) -> None:
    """Check tables against the manifest. An archive holds no plan and no log to derive them."""
    check_summary(folder, predicate)
    for path in (folder / f"{table}.parquet" for table in TABLES):
        with readable(path):
            refuse_misfit(path)
            for part in batches(path):  # reads all columns, to find a broken page anywhere
                part.validate(full=True)  # texts are UTF-8
                if set(pc.unique(part["run_id"]).to_pylist()) - {predicate.run_id}:
                    raise VerificationFailed(f"{path.name} has rows of another run")
    try:
        records = records_in(folder / "records.parquet", folder / "comparisons.parquet")
    except UsageError as error:
        raise VerificationFailed(str(error)) from None
    stated = predicate.environment
    versions = {name: getattr(stated, name) for name in ("torch", "triton", "cuda")}
    for record in records:
        if stated.gpu and record.gpu_name and not is_device(stated.gpu, record.gpu_name):
            require_same("what was signed: gpu", stated.gpu, record.gpu_name)
        for name, version in versions.items():
            if version is not None:
                require_same(f"what was signed: {name}", version, getattr(record, name))


def _refuse_changed(path: Path, run: ArchivedRun, table: str) -> None:
    if files.sha256(path.parent, path.name) != run.digest(table):
        raise VerificationFailed(f"{table}.parquet was changed after the signature")


def _prefix(predicate: Predicate) -> str:
    gpu = re.sub(r"[^A-Za-z0-9.-]+", "_", predicate.environment.gpu or "") or "none"
    return f"schema={predicate.results_schema}/gpu={gpu}/run={predicate.run_id}/"


def object_name(table: str, digest: str) -> str:
    return f"{table}-{digest[:16]}.parquet"
