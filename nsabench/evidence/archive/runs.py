"""Describe the runs of an archive, and remember which were verified on this machine."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from nsabench import limits
from nsabench.evidence.manifest.statement import Predicate, Trust
from nsabench.files import user_cache
from nsabench.model.case import Frozen
from nsabench.model.version import __version__

VERIFIED = "archived-runs.jsonl"
MOST_BYTES = 512 * limits.MIB  # a file of verified runs that is larger is overwritten


class ArchivedRun(Frozen):
    prefix: str  # the names of its objects begin with this; ends in "/"
    predicate: Predicate
    digests: dict[str, str]  # by table
    trust: Trust

    @property
    def run_id(self) -> str:
        return self.predicate.run_id

    def object(self, table: str) -> str:
        return self.prefix + object_name(table, self.digests[table])


def leave_out_shards(runs: Sequence[ArchivedRun]) -> list[ArchivedRun]:
    """Return the runs without the shards that a merged run among them contains."""
    merged = {shard for run in runs for shard in run.predicate.shards}
    return [run for run in runs if run.predicate.as_shard not in merged]


def object_name(table: str, digest: str) -> str:
    return f"{table}-{digest[:16]}.parquet"


def recall(keys: Collection[str]) -> dict[str, ArchivedRun]:
    """Return the runs with these keys that were verified before."""
    runs = {}
    with suppress(OSError), (user_cache() / VERIFIED).open("rb") as file:
        for line in file:
            key, _, content = line.partition(b" ")
            with suppress(ValueError):  # the file was edited
                if key.decode() in keys:
                    runs[key.decode()] = ArchivedRun.model_validate_json(content)
    return runs


def remember(runs: Mapping[str, ArchivedRun]) -> None:
    """Write verified runs to a file in the user's cache, if the cache is writable."""
    if not runs:
        return
    path = user_cache() / VERIFIED
    lines = [f"{key} {run.model_dump_json()}\n" for key, run in runs.items()]
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_full = path.exists() and path.stat().st_size > MOST_BYTES
        with path.open("wb" if is_full else "ab") as file:
            file.write("".join(["\n", *lines]).encode())  # the last line may be incomplete


def key_of(location: str, stamps: Mapping[str, str]) -> str:
    parts = [__version__, location, *(f"{name} {stamp}" for name, stamp in sorted(stamps.items()))]
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()
