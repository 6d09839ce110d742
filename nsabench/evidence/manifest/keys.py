"""Read which keys the user trusts, and which were revoked."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest.statement import Predicate, Trust
from nsabench.signing import keys

TRUSTED = "NSABENCH_TRUSTED_KEYS"
REVOKED = "NSABENCH_REVOKED_KEYS"
_KEYID = re.compile(r"[0-9a-f]{64}")


class Why(StrEnum):
    SUPERSEDED = "superseded"  # replaced by another key: earlier signatures stay valid
    COMPROMISED = "compromised"  # a thief can write any date: no signature is valid


@dataclass(frozen=True)
class Revocation:
    """A key that was revoked. since: the first day (UTC) on which a superseded key is invalid."""

    since: date
    why: Why

    def concerns(self, signed: datetime) -> bool:
        return self.why is Why.COMPROMISED or signed.astimezone(UTC).date() >= self.since


def trusted_keyids(files: tuple[Path, ...] = ()) -> frozenset[str]:
    """Return the ids of all keys in `files`, and in the paths that NSABENCH_TRUSTED_KEYS lists."""
    paths = list(files)
    for path in _list_paths(TRUSTED):
        paths += sorted(path.glob("*.pub")) if path.is_dir() else [path]
    return frozenset(keys.keyid_of(key) for path in paths for key in keys.read_publics(path))


def revocations(files: tuple[Path, ...] = ()) -> dict[str, Revocation]:
    """Return the revoked keys by id. If several lines name a key, the strictest counts."""
    found: dict[str, Revocation] = {}
    for path in (*files, *_list_paths(REVOKED)):
        content = keys.read(path, "the list of revoked keys")
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            words = line.partition("#")[0].split()
            if words:
                keyid, revocation = _revocation(words, f"{path}:{number}")
                earlier = found.get(keyid, revocation)
                found[keyid] = min(
                    earlier, revocation, key=lambda r: (r.why is not Why.COMPROMISED, r.since)
                )
    return found


def trust_in(
    predicate: Predicate, trusted: frozenset[str], revoked: Mapping[str, Revocation], require: Trust
) -> Trust:
    """Return the lowest trust of the signatures of a run and of its shards.

    Raise `VerificationFailed` if it is lower than `require`, or if a signature is by a revoked key.
    """
    levels = {}
    for by in (*predicate.shards, predicate.as_shard):
        refuse_revoked(by.keyid, by.signed, revoked)
        levels[Trust.PINNED if by.keyid in trusted else by.trust] = by.keyid
    trust = min(levels, key=list(Trust).index)
    if not trust.reaches(require):
        remedies = {
            Trust.UNPINNED: f"it is signed with the key {levels[trust]}. If you trust that key, "
            "give its file with --key.",
            Trust.EPHEMERAL: "it is signed with an ephemeral key: sign with a lasting key.",
        }
        sentence = f"the trust of the run is {trust}, but at least {require} is required"
        raise VerificationFailed(sentence, remedies[trust])
    return trust


def refuse_revoked(keyid: str, signed: datetime, revoked: Mapping[str, Revocation]) -> None:
    revocation = revoked.get(keyid)
    if revocation is not None and revocation.concerns(signed):
        raise VerificationFailed(
            f"it was signed on {signed:%Y-%m-%d} with the key {keyid}, which is "
            f"{revocation.why} since {revocation.since}",
            "do not rely on the run; have it measured and signed with another key.",
        )


def _revocation(words: list[str], where: str) -> tuple[str, Revocation]:
    try:
        keyid, since, why = words
        if not _KEYID.fullmatch(keyid):
            raise ValueError("no keyid")
        return keyid, Revocation(date.fromisoformat(since), Why(why))
    except ValueError:
        raise UsageError(
            f"{where} is not a keyid, a date and a reason",
            "write lines such as `KEYID 2027-01-31 superseded` or `KEYID 2027-01-31 compromised`; "
            "`nsabench key show FILE.pub` prints the keyid.",
        ) from None


def _list_paths(variable: str) -> list[Path]:
    return [Path(part) for part in os.environ.get(variable, "").split(os.pathsep) if part]
