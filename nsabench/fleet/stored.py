"""Shards through a bucket, where hosts share no folder.

    shards/N/RUN_ID/...                   a run that is whole; its manifest is written last
    unfinished/N/RUN_ID/LINES/...         one that was stopped with so many lines; mark.json is last

No object is ever written twice, so that whoever reads sees all of a run, or nothing of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from nsabench.bounds import limits
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest.seal import MANIFEST
from nsabench.fleet import task
from nsabench.fleet.folder import FleetFolder
from nsabench.fleet.status import Stage
from nsabench.fleet.task import is_begun, is_signed
from nsabench.model.plan import Plan

if TYPE_CHECKING:
    from nsabench.evidence.archive.store import Store

MARK = "mark.json"


@dataclass(frozen=True)
class Sent:
    """What a bucket has of a shard: all objects whose names begin with `prefix`. lines: of the
    journal of one that was stopped."""

    stage: Stage
    number: int
    run_id: str
    prefix: str
    lines: int = 0


def _ends(names: Iterable[str]) -> Iterator[Sent]:
    """What the bucket has all of, by the names of the objects that are written last. Any other name
    is passed over: whoever may write there may write what they like."""
    for name in names:
        match name.split("/"):
            case ["shards", number, run_id, last] if last == MANIFEST and _is_number(number):
                yield Sent(Stage.WHOLE, int(number), run_id, name.removesuffix(MANIFEST))
            case ["unfinished", number, run_id, lines, last] if (
                last == MARK and _is_number(number) and lines.isascii() and lines.isdecimal()
            ):
                prefix = name.removesuffix(MARK)
                yield Sent(Stage.STOPPED, int(number), run_id, prefix, int(lines))


def _is_number(text: str) -> bool:
    """As this module writes it, so that one shard has one name."""
    return text.isdecimal() and str(int(text)) == text


def _store(location: str, *, create: bool = False) -> Store:
    # Its library comes with an extra, which a fleet in a shared folder does not need.
    from nsabench.evidence.archive.store import Store

    return Store(location, create=create)


def measure(folder: FleetFolder, number: int) -> int:
    """Measure a shard as `task.measure` does, with what the bucket of the fleet has of it; and send
    there what came of it. What a host stopped is begun anew on another one."""
    location = folder.read().results
    if not location:
        return task.measure(folder, number)
    run = folder.shard(number)
    if not run.exists():
        fetch_stopped(folder, number, location)
    code = task.measure(folder, number)
    if code in (task.ELSEWHERE, VerificationFailed.exit_code) and not is_signed(run):
        # It stays in the bucket; here it can neither be gone on with nor be signed.
        shutil.rmtree(run)
        code = task.measure(folder, number)
    send(folder, number, location)
    return code


def send(folder: FleetFolder, number: int, location: str) -> str:
    """Send what there is of a shard, whole or stopped. Returns where it now lies; empty where
    nothing was measured. Raises `EnvironmentRefused` where the bucket does not take it."""
    run = folder.shard(number)
    if not is_begun(run):
        return ""
    store = _store(location, create=True)
    run_id = Plan.read(run / "plan.yaml").run_id
    whole = is_signed(run)
    if whole:
        prefix, last = f"shards/{number}/{run_id}", MANIFEST
    else:
        lines = (run / "journal.jsonl").read_bytes().count(b"\n")
        prefix, last = f"unfinished/{number}/{run_id}/{lines:08d}", MARK
    digests = {}
    for path in _files(run):
        name = path.relative_to(run).as_posix()
        if name == last or (not whole and path.suffix not in (".yaml", ".json", ".jsonl", ".log")):
            continue
        data = path.read_bytes()
        digests[name] = hashlib.sha256(data).hexdigest()
        store.create(f"{prefix}/{name}", data)
    end = (run / last).read_bytes() if whole else json.dumps(digests, sort_keys=True).encode()
    store.create(f"{prefix}/{last}", end)
    return f"{location.rstrip('/')}/{prefix}"


def _files(run: Path) -> Iterator[Path]:
    return (path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink())


def fetch(folder: FleetFolder, location: str) -> dict[int, list[str]]:
    """Fetch the whole shards that are not here yet. Returns, of each shard that is whole more than
    once, the runs that it was measured by: the first of them, by name, is taken.

    What is fetched is not verified: who merges does that. Raises `EnvironmentRefused` where the
    bucket cannot be read.
    """
    store = _store(location)
    names = store.names()
    found: dict[int, list[str]] = defaultdict(list)
    for sent in _ends(names):
        if sent.stage is Stage.WHOLE:
            found[sent.number].append(sent.run_id)
    for number, runs in found.items():
        if number <= folder.read().shards and not is_signed(folder.shard(number)):
            _take(store, names, f"shards/{number}/{min(runs)}/", folder.shard(number))
    return {number: sorted(runs) for number, runs in found.items() if len(runs) > 1}


def stages(location: str) -> dict[int, Stage]:
    """Which shards the bucket has, whole or stopped. Raises `EnvironmentRefused` where it cannot be
    read."""
    found: dict[int, Stage] = {}
    for sent in _ends(_store(location, create=True).names()):
        if found.get(sent.number) is not Stage.WHOLE:
            found[sent.number] = sent.stage
    return found


def fetch_stopped(folder: FleetFolder, number: int, location: str) -> bool:
    """Fetch what a host that stopped had of a shard, with the most lines. Returns whether there is
    anything; a shard that is whole is fetched as it is."""
    store = _store(location, create=True)
    names = store.names()
    own = [sent for sent in _ends(names) if sent.number == number]
    done = [sent.prefix for sent in own if sent.stage is Stage.WHOLE]
    stopped = [sent for sent in own if sent.stage is Stage.STOPPED]
    if done:
        _take(store, names, min(done), folder.shard(number))
    elif stopped:
        most = max(stopped, key=lambda sent: (sent.lines, sent.prefix))
        _take(store, names, most.prefix, folder.shard(number))
    return bool(own)


def _take(store: Store, names: list[str], prefix: str, into: Path) -> None:
    making = into.with_name(f".{into.name}.fetched")
    shutil.rmtree(making, ignore_errors=True)
    (making / "logs").mkdir(parents=True)
    for name in (name for name in names if name.startswith(prefix)):
        relative = PurePosixPath(name.removeprefix(prefix))
        if relative.is_absolute() or ".." in relative.parts or len(relative.parts) > 3:
            raise VerificationFailed(f"{store.location}/{name} is no file of a run")
        if relative.name == MARK:
            continue
        path = making / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.read(name, limits.FILE))
    if into.is_dir():
        into.rmdir()
    making.replace(into)
