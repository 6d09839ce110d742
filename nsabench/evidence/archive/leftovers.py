"""Find and remove what killed writers have left in an archive.

A writer puts the tables first and the manifest last. So an object that no manifest names is of a
writer that is still busy, or of one that was killed. The age of the object tells them apart, by the
clock of the store, because the clocks of hosts may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex

from nsabench import limits
from nsabench.errors import VerificationFailed
from nsabench.evidence.archive.archive import Archive, object_name
from nsabench.evidence.archive.store import Store
from nsabench.evidence.manifest import MANIFEST
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.statement import signed
from nsabench.evidence.manifest.tables import TABLES

PATIENCE_S = 24 * 3600.0


def leftovers(archive: Archive, older_than_s: float = PATIENCE_S) -> list[str]:
    """Return the objects that no manifest names and that are at least so old, by name. Objects
    beside a broken manifest are left, because they may be evidence."""
    ages = ages_by_the_store(archive.store)
    named = set(_named(archive.store, [n for n in ages if n.endswith(f"/{MANIFEST}")]))
    return sorted(
        name
        for name, age in ages.items()
        if age >= older_than_s  # stores count whole seconds: 0 includes this second
        and name not in named
        and f"{name.rpartition('/')[0]}/*" not in named
        and _is_ours(name)
    )


def remove(archive: Archive, names: list[str]) -> list[str]:
    """Remove leftovers and return those that are gone. If a manifest names one by now, it stays."""
    store, gone = archive.store, []
    for name in names:
        try:
            data = store.read(name, limits.TABLE)
        except VerificationFailed:
            continue  # another process removes it
        if _is_named(store, name):
            continue
        store.remove(name)
        # A writer may have found the object there, and written its manifest meanwhile.
        if _is_named(store, name):
            store.create(name, data)
            continue
        gone.append(name)
    return gone


def _is_named(store: Store, name: str) -> bool:
    """Whether the manifest beside an object names it, or is broken."""
    place = name.rpartition("/")[0]
    manifest = f"{place}/{MANIFEST}"
    if manifest not in store.names():
        return False
    named = set(_named(store, [manifest]))
    return name in named or f"{place}/*" in named


def ages_by_the_store(store: Store) -> dict[str, float]:
    """Return the seconds since each object was written, by the clock of the store."""
    probe = f"probe-{token_hex(8)}"
    store.create(probe, b"what time is it?")
    try:
        times = store.times()
    finally:
        store.remove(probe)
    now = times.pop(probe)
    return {name: now - time for name, time in times.items() if not name.startswith("probe-")}


def _named(store: Store, manifests: list[str]) -> Iterator[str]:
    """Yield the objects that manifests name, and `PREFIX/*` for a broken manifest."""
    for name in manifests:
        prefix = name.removesuffix(MANIFEST)
        yield name
        try:
            statement, _ = signed(Envelope.parse(store.read(name, limits.MANIFEST)))
            for table in TABLES:
                yield prefix + object_name(table, statement.digests[f"{table}.parquet"])
        except (VerificationFailed, KeyError):
            yield f"{prefix}*"


def _is_ours(name: str) -> bool:
    """Whether the name is one of an archive: a bucket may hold other objects."""
    parts = name.split("/")
    return (
        len(parts) >= 4
        and parts[-4].startswith("schema=")
        and parts[-3].startswith("gpu=")
        and parts[-2].startswith("run=")
    )
