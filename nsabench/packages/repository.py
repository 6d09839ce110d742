"""Libraries that are repositories and not on PyPI: each at one commit, checked by a sha256.

They are kept in the user's cache, or in the folder that `NSABENCH_PACKAGES` names.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.files import user_cache, writing

FOLDER = "NSABENCH_PACKAGES"
GITHUB = "https://codeload.github.com"
MOST_BYTES = 64 << 20  # of an archive, packed and unpacked
TIMEOUT_S = 60
_SKIPPED = {".git", "__pycache__"}
_MARK = ".nsabench"  # a file that names the commit and the repairs of a fetched repository


@dataclass(frozen=True)
class Repair:
    """A text to replace in a file that does not run as it is. why: the reason, for the user."""

    file: str
    old: str
    new: str
    why: str


@dataclass(frozen=True)
class Repository:
    """github: `OWNER/NAME`. sha256: the `digest` of all files of the commit."""

    github: str
    commit: str
    sha256: str
    repairs: tuple[Repair, ...] = ()

    @property
    def name(self) -> str:
        return self.github.partition("/")[2]

    @property
    def archive(self) -> str:
        return f"{GITHUB}/{self.github}/tar.gz/{self.commit}"


def folder() -> Path:
    """Return the folder that holds all repositories."""
    named = os.environ.get(FOLDER)
    return Path(named).absolute() if named else user_cache() / "packages"


def is_here(repository: Repository) -> bool:
    """Return whether the repository was fetched at its commit and with its repairs."""
    try:
        return (_place(repository) / _MARK).read_text() == _mark(repository)
    except OSError:
        return False


def _place(repository: Repository) -> Path:
    return folder() / f"{repository.name}-{repository.commit[:12]}"


def _mark(repository: Repository) -> str:
    repairs = "".join(f"\n{r.file}: {r.why}" for r in repository.repairs)
    return f"{repository.commit} {repository.sha256}{repairs}\n"


@contextmanager
def importable(repository: Repository) -> Iterator[None]:
    """Let Python find the modules of a repository, after those that are installed."""
    path = str(_place(repository))
    sys.path.append(path)
    try:
        yield
    finally:
        sys.path.remove(path)


def fetch(repository: Repository, source: Path | None = None) -> Path:
    """Fetch and repair a repository; return its folder.

    source: a checkout or an archive; None: GitHub. Raises `UsageError` if the files differ from the
    commit, and `EnvironmentRefused` if GitHub cannot be reached.
    """
    with tempfile.TemporaryDirectory() as temporary:
        given = source or _download(repository, Path(temporary))
        try:
            files = _read(given if given.is_dir() else _unpack(given, Path(temporary)))
        except (OSError, tarfile.TarError) as error:
            raise UsageError(f"{given} cannot be read: {error}", "check the file.") from None
    received = digest(files)
    if received != repository.sha256:
        raise UsageError(
            f"the files of {source or repository.archive} have the sha256 {received[:12]}; "
            f"{repository.name} {repository.commit[:12]} must have {repository.sha256[:12]}",
            f"give a checkout of commit {repository.commit}, without further files.",
        )
    for repair in repository.repairs:  # the digest says that each text is there
        text = files[repair.file].decode()
        files[repair.file] = text.replace(repair.old, repair.new).encode()
    target = _place(repository)
    with writing(target, "fetch it again"):
        shutil.rmtree(target, ignore_errors=True)
        for name, content in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (target / _MARK).write_text(_mark(repository))
    return target


def digest(files: Mapping[str, bytes]) -> str:
    """Return the sha256 over the names and contents, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0".encode() + hashlib.sha256(files[name]).digest())
    return total.hexdigest()


def _read(source: Path) -> dict[str, bytes]:
    files = {path.relative_to(source): path for path in source.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in files.items()
        if not _SKIPPED & set(name.parts) and path.name != _MARK
    }


def _download(repository: Repository, target: Path) -> Path:
    remedy = (
        "download it on another host, then: "
        f"nsabench packages fetch {repository.name} --from FILE.tar.gz."
    )
    try:
        with urllib.request.urlopen(repository.archive, timeout=TIMEOUT_S) as answer:
            content = answer.read(MOST_BYTES + 1)
    except (urllib.error.URLError, TimeoutError) as error:
        raise EnvironmentRefused(
            f"{repository.archive} cannot be downloaded: {getattr(error, 'reason', error)}", remedy
        ) from error
    if len(content) > MOST_BYTES:
        raise EnvironmentRefused(f"{repository.archive} is over {MOST_BYTES >> 20} MiB", remedy)
    file = target / "archive.tar.gz"
    file.write_bytes(content)
    return file


def _unpack(archive: Path, target: Path) -> Path:
    """Unpack a tar archive; return its top-level folder."""
    with tarfile.open(archive) as tar:
        if sum(member.size for member in tar) > MOST_BYTES:
            raise UsageError(
                f"{archive} unpacks to over {MOST_BYTES >> 20} MiB", "give the right one."
            )
        tar.extractall(target / "unpacked", filter="data")
    folders = list((target / "unpacked").iterdir())
    return folders[0] if len(folders) == 1 else target / "unpacked"
