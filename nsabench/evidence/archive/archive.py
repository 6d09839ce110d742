"""Adding runs to an archive, listing them, and verifying what lies in one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nsabench.errors import VerificationFailed
from nsabench.evidence.archive.store import Store
from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.evidence.manifest.contents import check_archived
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.keys import refuse_revoked, revocations
from nsabench.evidence.manifest.statement import Statement, Trust
from nsabench.evidence.manifest.verify import signed

TABLES = ("records", "samples")
READERS = 16  # requests that are under way at once


class Added(StrEnum):
    """What became of a run that was to be added."""

    ADDED = "added"
    THERE = "already there"


@dataclass(frozen=True)
class ArchivedRun:
    """A whole run of an archive. `prefix` ends in `/`."""

    prefix: str
    statement: Statement

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
        return self.prefix + _object(table, self.digest(table))


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
        gpu = re.sub(r"[^A-Za-z0-9.-]+", "_", predicate.environment.gpu or "") or "none"
        prefix = f"schema={predicate.results_schema}/gpu={gpu}/run={predicate.run_id}/"
        manifest = (run / MANIFEST).read_bytes()
        for table in TABLES:
            data = (run / f"{table}.parquet").read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            if digest != report.digests[f"{table}.parquet"]:
                raise VerificationFailed(f"{run}/{table}.parquet changed while it was read")
            self.store.create(prefix + _object(table, digest), data)
        if self.store.create(prefix + MANIFEST, manifest):
            return Added.ADDED, prefix
        if self.store.read(prefix + MANIFEST) != manifest:
            raise VerificationFailed(
                f"another run with the id {predicate.run_id} is in {self.store.location}",
                "a run that was resumed or signed again is another one; keep one of them.",
            )
        return Added.THERE, prefix

    def runs(self) -> list[ArchivedRun]:
        """All whole runs, by id. Raises `VerificationFailed` when a manifest cannot be read."""
        return self._read_runs([n for n in self.store.names() if n.endswith("/" + MANIFEST)])

    def _read_runs(self, manifests: list[str]) -> list[ArchivedRun]:
        def read(name: str) -> ArchivedRun:
            content = Envelope.parse(self.store.read(name)).content()
            return ArchivedRun(name.removesuffix(MANIFEST), Statement.parse(content))

        with ThreadPoolExecutor(READERS) as pool:
            return sorted(pool.map(read, manifests), key=lambda run: run.run_id)

    def check(self, trusted: frozenset[str], require: Trust) -> tuple[list[str], list[str], int]:
        """Ids of the sound runs, a sentence for each broken one, objects without a manifest."""
        names = self.store.names()
        manifests = [n for n in names if n.endswith("/" + MANIFEST)]
        sound, broken = [], []
        for name in manifests:
            try:
                sound.append(self._check(name, trusted, require))
            except VerificationFailed as error:
                broken.append(f"{name.removesuffix('/' + MANIFEST)}: {error}")
        whole = {n.removesuffix(MANIFEST) for n in manifests}
        stray = sum(n.rpartition("/")[0] + "/" not in whole for n in names)
        return sound, broken, stray

    def _check(self, name: str, trusted: frozenset[str], require: Trust) -> str:
        statement, keyid = signed(Envelope.parse(self.store.read(name)))
        predicate = statement.predicate
        run = ArchivedRun(name.removesuffix(MANIFEST), statement)
        if f"/run={predicate.run_id}/" not in "/" + run.prefix:
            raise VerificationFailed(f"it holds the run {predicate.run_id}")
        refuse_revoked(keyid, predicate.signed, revocations())
        trust = Trust.PINNED if keyid in trusted else predicate.signer.trust
        if not trust.reaches(require):
            raise VerificationFailed(f"it is {trust} and {require} is required")
        for table in TABLES:
            data = self.store.read(run.object(table))
            if hashlib.sha256(data).hexdigest() != run.digest(table):
                raise VerificationFailed(f"{table}.parquet was changed after the signature")
            if table == "records":
                check_archived(data, predicate)
        return predicate.run_id


def _object(table: str, digest: str) -> str:
    return f"{table}-{digest[:16]}.parquet"
