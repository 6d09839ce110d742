"""Define the folder of a run: the names of its files, and what it may hold."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Container, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from nsabench import reading
from nsabench.errors import Interrupted, UsageError, VerificationFailed
from nsabench.files import unfinished, writing
from nsabench.model.job import Job
from nsabench.model.measurement import Observation
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose
from nsabench.running import log
from nsabench.signing.signer import RUN_KEY
from nsabench.verdicts.results import RunLog

LATEST = "latest"
SHARDS = "shards"  # the folder of a merged run that holds the shards
MANIFEST = "manifest.dsse.json"
KEPT = ("plan.json", "log.jsonl", "environment.json", MANIFEST)  # what merged runs keep of shards
NAMES = (
    *KEPT,
    RUN_KEY,
    *("records.parquet", "comparisons.parquet", "samples.parquet"),
    *("thresholds.yaml", "selection_report.md", "report.html"),
)
# A log of what a case printed in a pass (main, confirmation, ...), or a kept file of a shard.
_NAME = re.compile(
    rf"logs/[0-9a-f]{{12}}(\.[a-z]+)?\.log|"
    rf"{SHARDS}/(?P<shard>[A-Za-z0-9][A-Za-z0-9-]{{0,99}})/({'|'.join(map(re.escape, KEPT))})"
)
HEAD = "=== "  # begins a line that names the implementations whose output follows


def is_run_file(name: str, shards: Container[str] | None = None) -> bool:
    """Return whether a run may hold this file. `shards` has its shards' ids; None allows any."""
    if name in NAMES:
        return True
    found = _NAME.fullmatch(name)
    return found is not None and (not found["shard"] or shards is None or found["shard"] in shards)


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def thresholds(self) -> Path:
        return self.path / "thresholds.yaml"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def hash_environment(self) -> str:
        """Return the sha256 of environment.json, or an empty string if it cannot be read."""
        try:
            with reading.opened(self.environment) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, reading.OutOfBounds):
            return ""

    def shard(self, run_id: str) -> RunFolder:
        return RunFolder(self.path / SHARDS / run_id)

    def parts(self) -> list[RunLog]:
        plan = Plan.read(self.plan)
        if not plan.shards:
            return [RunLog(plan, log.read(self.log))]
        return [part for run_id in plan.shards for part in self.shard(run_id).parts()]

    def create(self) -> None:
        """Make the folder. Remove a run that never began; raise `UsageError` if files remain."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self._is_unbegun():
                with closing(log.LogFile(self.log)):  # the open log holds the lock
                    self.discard()
            self.path.mkdir(exist_ok=True)
            if any(self.path.iterdir()):
                raise UsageError(
                    f"{self.path} is not empty",
                    "give --out another folder, or continue a run with --resume.",
                )
            self.logs.mkdir()
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be made: {error.strerror}",
                f"`chown` the parent folder to uid {os.getuid()}, run the container as the owner "
                "of that folder (`docker run --user`), or give --out a writable folder.",
            ) from None

    def _list_first(self) -> list[Path]:
        written = [self.plan, self.log, self.environment, self.path / RUN_KEY]
        return [*written, *map(unfinished, written)]

    def _is_unbegun(self) -> bool:
        if self.logs.is_symlink() or not self.logs.is_dir() or any(self.logs.iterdir()):
            return False
        if {*self.path.iterdir()} - {*self._list_first(), self.logs}:
            return False
        return not self.log.exists() or not log.read(self.log).sessions

    def refuse_foreign(self) -> None:
        """Remove temporary files. Raise `VerificationFailed` for a link or for a foreign file."""
        self.refuse_links()
        for name in NAMES:
            unfinished(self.path / name).unlink(missing_ok=True)
        shards = Plan.read(self.plan).shards
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            if path.is_file() and not is_run_file(name, shards):
                raise VerificationFailed(
                    f"{name[:200]!r} is not a file of a run",
                    "find out where it comes from; move it elsewhere, or start a new run.",
                )

    def refuse_links(self) -> None:
        """Raise `VerificationFailed` for a link, pipe or device: its data are outside the run."""
        for where, folders, files in os.walk(self.path):
            for path in (Path(where, name) for name in sorted(folders + files)):
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    what = "a link" if stat.S_ISLNK(mode) else "a pipe or a device"
                    raise VerificationFailed(
                        f"{path.relative_to(self.path)} is {what}, and a run holds none",
                        "find out where it comes from; remove it, or start a new run.",
                    )

    def link_latest(self) -> None:
        link = self.path.parent / LATEST
        if link.is_symlink() or not link.exists():
            new = link.with_name(f"{LATEST}.{self.path.name}")
            new.symlink_to(self.path.name)
            new.replace(link)

    def discard(self) -> None:
        for path in self._list_first():
            path.unlink(missing_ok=True)
        link = self.path.parent / LATEST
        if link.is_symlink() and link.readlink() == Path(self.path.name):
            link.unlink()
        for folder in (self.logs, self.path):
            if folder.is_dir() and not any(folder.iterdir()) and not folder.is_mount():
                folder.rmdir()

    @contextmanager
    def resumable(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(str(self.path)) from None

    def writing(self) -> AbstractContextManager[None]:
        """Turn a full disk or a read-only folder into `EnvironmentRefused`."""
        return writing(self.path, f"go on with --resume {self.path}")

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Return the folder of a run. Raises `UsageError` if `path` holds none."""
        folder = cls(path)
        if not folder.plan.is_file():
            what = f"{path} holds no run" if path.exists() else f"there is no folder {path}"
            raise UsageError(what, "give the folder that nsabench made.")
        return folder

    def printed(self, case_id: str, purpose: Purpose) -> Path:
        later = "" if purpose is Purpose.MAIN else f".{purpose}"
        return self.logs / f"{case_id}{later}.log"

    def keep_printed(self, job: Job, observations: Sequence[Observation], printed: str) -> None:
        """Append printed output to a file of the case, and move the tracebacks to that file."""
        parts = {printed: list(job.implementations)}
        for observation in observations:
            parts.setdefault(observation.traceback, []).append(observation.implementation)
            observation.traceback = ""
        sections = [
            f"{HEAD}{', '.join(names)}\n{_indent_headings(text)}\n"
            for text, names in parts.items()
            if text.strip()
        ]
        if sections:
            path = self.printed(job.case.id, job.purpose)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(sections)


def _indent_headings(text: str) -> str:
    # A line that a kernel printed must not look like a heading, which names implementations.
    lines = text.rstrip().splitlines()
    return "\n".join(f" {line}" if line.startswith(HEAD) else line for line in lines)
