"""The files of a run, by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from nsabench.errors import Interrupted, UsageError, VerificationFailed
from nsabench.files import writing
from nsabench.model.journal import Entry
from nsabench.model.vocabulary import PassName
from nsabench.signing.signer import RUN_KEY

LATEST = "latest"
HEAD = "=== "  # before the names of those whom a part of a log is of


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def records(self) -> Path:
        return self.path / "records.parquet"

    @property
    def thresholds(self) -> Path:
        return self.path / "thresholds.yaml"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def create(self) -> None:
        """Raises `UsageError` when it cannot be made or already holds a run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise UsageError(
                    f"{self.path} is not empty",
                    "give --out another folder, or continue a run with --resume.",
                )
            self.logs.mkdir()
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be made: {error.strerror}", "give --out a writable folder."
            ) from None

    def refuse_links(self) -> None:
        """Raises `VerificationFailed` when a file or folder of it leads, or may lead, elsewhere:
        what is written there would be written where it leads."""
        for where, folders, files in os.walk(self.path):
            for path in (Path(where, name) for name in sorted(folders + files)):
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    what = "a link" if stat.S_ISLNK(mode) else "a pipe or a device"
                    raise VerificationFailed(
                        f"{path.relative_to(self.path)} is {what}, and a run holds none",
                        "look where it is from; remove it, or start a new run.",
                    )

    def is_latest(self) -> None:
        """`latest` beside it names this folder. A file of that name is left as it is."""
        link = self.path.parent / LATEST
        if link.is_symlink() or not link.exists():
            new = link.with_name(f"{LATEST}.{self.path.name}")
            new.symlink_to(self.path.name)
            new.replace(link)

    def discard(self) -> None:
        """Take away what a run leaves before it has measured anything."""
        known = (self.plan, self.journal, self.environment, self.path / RUN_KEY)
        for path in known:
            path.unlink(missing_ok=True)
        link = self.path.parent / LATEST
        if link.is_symlink() and link.readlink() == Path(self.path.name):
            link.unlink()
        for folder in (self.logs, self.path):
            if folder.is_dir() and not any(folder.iterdir()) and not folder.is_mount():
                folder.rmdir()

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Raises `Interrupted` for a `KeyboardInterrupt`: it says where the run lies."""
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(str(self.path)) from None

    def writing(self) -> AbstractContextManager[None]:
        """Raises `EnvironmentRefused` when the disk is full or the folder may not be written."""
        return writing(self.path, f"go on with --resume {self.path}")

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Raises `UsageError` when there is no run in `path`."""
        folder = cls(path)
        if not path.exists():
            raise UsageError(f"there is no folder {path}", "give the folder that nsabench made.")
        if not folder.plan.is_file():
            raise UsageError(f"{path} holds no run", "give the folder that nsabench made.")
        return folder

    def log(self, case_id: str, name: PassName) -> Path:
        """What the implementations of a case printed and raised in a pass."""
        later = "" if name is PassName.FIRST_LOOK else f".{name}"
        return self.logs / f"{case_id}{later}.log"

    def write_log(self, entry: Entry) -> None:
        """What the implementations of a case printed and raised: one file a case and pass. It
        leaves the entry for it, so that a journal stays small."""
        parts: dict[str, list[str]] = {}
        for outcome in entry.outcomes:
            for text in (outcome.log, outcome.traceback):
                if text.strip():
                    parts.setdefault(text, []).append(outcome.implementation)
            outcome.log = outcome.traceback = ""
        if not parts:
            return
        sections = (f"{HEAD}{', '.join(names)}\n{log.rstrip()}\n" for log, names in parts.items())
        path = self.log(entry.case_id, entry.pass_name)
        path.write_text("".join(sections), encoding="utf-8")
