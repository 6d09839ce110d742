"""What writers that were ended have left in an archive, and its removal.

A writer puts the tables first and the manifest last. So an object that no manifest names is of a
writer that is still at it, or of one that was ended; only its age tells. Ages are by the clock of
the store: those of hosts may be wrong.
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
    """The objects that no manifest names, at least so many seconds old, by name. What lies beside a
    manifest that is broken is left: it may be evidence."""
    ages = ages_by_the_store(archive.store)
    named = set(_named(archive.store, [n for n in ages if n.endswith(f"/{MANIFEST}")]))
    return sorted(
        name
        for name, age in ages.items()
        if age >= older_than_s  # stores tell whole seconds: 0 is all, also of this second
        and name not in named
        and f"{name.rpartition('/')[0]}/*" not in named
        and _is_ours(name)
    )


def remove(archive: Archive, names: list[str]) -> list[str]:
    """Remove leftovers. Returns those that are gone: one whose manifest came meanwhile stays."""
    store, gone = archive.store, []
    for name in names:
        try:
            data = store.read(name, limits.TABLE)
        except VerificationFailed:
            continue  # another one removes it, too
        if _is_named(store, name):
            continue
        store.remove(name)
        # A writer found the object there a moment ago, and has now said that its run is whole.
        if _is_named(store, name):
            store.create(name, data)
            continue
        gone.append(name)
    return gone


def _is_named(store: Store, name: str) -> bool:
    """Whether a manifest that lies there now names the object, or is broken."""
    place = name.rpartition("/")[0]
    manifest = f"{place}/{MANIFEST}"
    if manifest not in store.names():
        return False
    named = set(_named(store, [manifest]))
    return name in named or f"{place}/*" in named


def ages_by_the_store(store: Store) -> dict[str, float]:
    """Seconds since each object was written, by the clock that wrote down when."""
    probe = f"probe-{token_hex(8)}"
    store.create(probe, b"what time is it?")
    try:
        times = store.times()
    finally:
        store.remove(probe)
    now = times.pop(probe)
    return {name: now - time for name, time in times.items() if not name.startswith("probe-")}


def _named(store: Store, manifests: list[str]) -> Iterator[str]:
    """The objects that manifests name; of a broken one all that lies beside it, as `PREFIX/*`."""
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
    """Whether it lies where an archive puts things; a bucket may hold what others put there."""
    parts = name.split("/")
    return (
        len(parts) >= 4
        and parts[-4].startswith("schema=")
        and parts[-3].startswith("gpu=")
        and parts[-2].startswith("run=")
    )
