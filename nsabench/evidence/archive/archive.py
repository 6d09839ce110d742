"""Add runs to an archive, list them and verify them."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from nsabench import limits, reading
from nsabench.errors import VerificationFailed
from nsabench.evidence.archive.runs import ArchivedRun, key_of, object_name, recall, remember
from nsabench.evidence.archive.store import Store
from nsabench.evidence.manifest import MANIFEST, Report, files, verify
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.keys import revocations, trust_in
from nsabench.evidence.manifest.statement import (
    Predicate,
    Trust,
    is_device,
    require_same,
    verify_envelope,
)
from nsabench.evidence.manifest.tables import COLUMNS, OUTCOME, are_controls_caught
from nsabench.model.record import Record
from nsabench.verdicts.tables import TABLES, checked_batches, read_records

READERS = 16  # requests at once


class Added(StrEnum):
    ADDED = "added"
    THERE = "already there"


@dataclass(frozen=True)
class Surveyed:
    """The sound and the broken runs (a sentence each). stray: how many objects belong to no run."""

    sound: list[ArchivedRun]
    broken: list[str]
    stray: int


class Archive:
    def __init__(self, location: str, *, create: bool = False) -> None:
        self.store = Store(location, create=create)

    def add(
        self, run: Path, *, trusted: Iterable[str] = (), require: Trust = Trust.EPHEMERAL
    ) -> tuple[Added, str]:
        """Verify a run and copy it. Return whether it was added, and the prefix of its objects."""
        report = verify(run, trusted=trusted, require=require)
        report.raise_if_broken()
        return self.add_verified(report)

    def add_verified(self, report: Report) -> tuple[Added, str]:
        """Copy a verified run. Raise `VerificationFailed` if an archived run has the same id."""
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
            "keep one of them: a run that was resumed or signed again counts as another run.",
        )

    def runs(self, trusted: frozenset[str] = frozenset()) -> list[ArchivedRun]:
        return self.survey(trusted).sound

    def survey(
        self, trusted: frozenset[str] = frozenset(), require: Trust = Trust.EPHEMERAL
    ) -> Surveyed:
        """Verify all runs. If one was verified before and has not changed, only check its trust."""
        stamps = self.store.stamps()
        manifests = [n for n in stamps if n.endswith("/" + MANIFEST)]
        stored: dict[str, dict[str, str]] = defaultdict(dict)
        for name, stamp in stamps.items():
            stored[_folder(name)][name] = stamp
        keys = {name: key_of(self.store.location, stored[_folder(name)]) for name in manifests}
        verified = recall(frozenset(keys.values()))
        new: dict[str, ArchivedRun] = {}
        revoked = revocations()

        def checked(name: str) -> ArchivedRun | str:
            try:
                run = verified.get(keys[name]) or self._read_manifest(name)
                # The tables of a run with too low a trust are not read.
                trust = trust_in(run.predicate, trusted, revoked, require)
                if keys[name] not in verified:
                    self._verify_tables(run, stored[_folder(name)])
                    new[keys[name]] = run
                return run.model_copy(update={"trust": trust})
            except VerificationFailed as error:
                return f"{_folder(name)}: {error}" + (error.remedy and f"; {error.remedy}")

        with ThreadPoolExecutor(READERS) as pool:
            results = [*pool.map(checked, [n for n in manifests if keys[n] not in verified])]
        results += [checked(name) for name in manifests if keys[name] in verified]
        remember(new)
        runs = [run for run in results if isinstance(run, ArchivedRun)]
        broken = sorted(sentence for sentence in results if isinstance(sentence, str))
        # A query over two copies of a run would count it twice.
        times = Counter(run.run_id for run in runs)
        broken += [
            f"{run.prefix.removesuffix('/')}: the run {run.run_id} is in the archive "
            f"{times[run.run_id]} times"
            for run in runs
            if times[run.run_id] > 1
        ]
        sound = sorted((r for r in runs if times[r.run_id] == 1), key=lambda run: run.run_id)
        complete = set(map(_folder, manifests))
        stray = sum(len(there) for folder, there in stored.items() if folder not in complete)
        return Surveyed(sound, broken, stray)

    def _read_manifest(self, name: str) -> ArchivedRun:
        statement, _ = verify_envelope(Envelope.parse(self.store.read(name, limits.MANIFEST)))
        try:
            digests = {table: statement.digests[f"{table}.parquet"] for table in TABLES}
        except KeyError as missing:
            raise VerificationFailed(f"its manifest names no {missing.args[0]}") from None
        return ArchivedRun(
            prefix=name.removesuffix(MANIFEST),
            predicate=statement.predicate,
            digests=digests,
            trust=statement.predicate.signer.trust,
        )

    def _verify_tables(self, run: ArchivedRun, there: Iterable[str]) -> None:
        prefix = _prefix(run.predicate)
        if not f"/{run.prefix}".endswith(f"/{prefix}"):
            raise VerificationFailed(f"it is not in the folder {prefix}")
        for stored in map(run.object, TABLES):
            if stored not in there:
                raise VerificationFailed(f"{stored} is missing")
        for table in TABLES:
            with files.readable(f"{table}.parquet"):
                _check_table(run.predicate, table, self.table(run, table))

    def table(self, run: ArchivedRun, table: str) -> bytes:
        """Read a table, and check that it has the hash that the manifest names."""
        data = self.store.read(run.object(table), limits.TABLE)
        if hashlib.sha256(data).hexdigest() != run.digests[table]:
            raise VerificationFailed(f"{table}.parquet was changed after the signature")
        return data

    def records(self, run: ArchivedRun) -> list[Record]:
        with TemporaryDirectory() as scratch:
            for table in ("records", "comparisons"):
                Path(scratch, f"{table}.parquet").write_bytes(self.table(run, table))
            return read_records(Path(scratch))


def _check_table(predicate: Predicate, table: str, data: bytes) -> None:
    is_records, most = table == "records", getattr(limits, table.upper())
    outcomes, rows, needed = [], 0, OUTCOME if is_records else ()
    # All columns are read, since any part of the file may be broken.
    for part in checked_batches(pa.BufferReader(data), COLUMNS[table], most, needed):
        part.validate(full=True)  # for example, that texts are UTF-8
        rows += part.num_rows
        if _distinct(part, "run_id") - {predicate.run_id}:
            raise VerificationFailed(f"{table}.parquet has rows of another run")
        if is_records:
            _check_versions(part, predicate)
            outcomes += part.select(OUTCOME).filter(part["caught"].is_valid()).to_pylist()
        for column in COLUMNS[table] if table != "samples" else ():
            if column.word or column.is_required:
                for value in _distinct(part, column.name):
                    column.read(value)
    require_same(f"what was signed: {table}", getattr(predicate, table), rows)
    if is_records:
        caught = are_controls_caught(outcomes)
        require_same("what was signed: controls_caught", predicate.controls_caught, caught)


def _check_versions(records: pa.RecordBatch, predicate: Predicate) -> None:
    stated = predicate.environment
    for gpu in _distinct(records, "gpu_name"):
        if stated.gpu and gpu and not is_device(stated.gpu, gpu):
            require_same("what was signed: gpu", stated.gpu, gpu)
    for name in ("torch", "triton", "cuda"):
        version = getattr(stated, name)
        for found in _distinct(records, name) if version is not None else ():
            require_same(f"what was signed: {name}", version, found)


def _distinct(part: pa.RecordBatch, name: str) -> set[Any]:
    return set(pc.unique(part[name]).to_pylist()) if name in part.schema.names else {None}


def _prefix(predicate: Predicate) -> str:
    gpu = re.sub(r"[^A-Za-z0-9.-]+", "_", predicate.environment.gpu or "") or "none"
    return f"schema={predicate.results_schema}/gpu={gpu}/run={predicate.run_id}/"


def _folder(name: str) -> str:
    return name.rpartition("/")[0]
