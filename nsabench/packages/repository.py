"""Fetches libraries that are not on PyPI, each at one commit that a sha256 checks.

They are in the user's cache, or in the folder `NSABENCH_PACKAGES`.
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
    """A text to replace in a file that does not run as published, with the reason."""

    file: str
    old: str
    new: str
    why: str


@dataclass(frozen=True)
class Repository:
    """A repository `OWNER/NAME` at one commit. sha256: the `digest` of its files."""

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
    named = os.environ.get(FOLDER)
    return Path(named).absolute() if named else user_cache() / "packages"


def is_here(repository: Repository) -> bool:
    """Return whether the repository was fetched at this commit with these repairs."""
    try:
        return (_get_folder(repository) / _MARK).read_text() == _make_mark(repository)
    except OSError:
        return False


def _get_folder(repository: Repository) -> Path:
    return folder() / f"{repository.name}-{repository.commit[:12]}"


def _make_mark(repository: Repository) -> str:
    repairs = "".join(f"\n{r.file}: {r.why}" for r in repository.repairs)
    return f"{repository.commit} {repository.sha256}{repairs}\n"


@contextmanager
def importable(repository: Repository) -> Iterator[None]:
    """Let Python import from a repository, after what is installed."""
    path = str(_get_folder(repository))
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
    target = _get_folder(repository)
    with writing(target, "fetch it again"):
        shutil.rmtree(target, ignore_errors=True)
        for name, content in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (target / _MARK).write_text(_make_mark(repository))
    return target


def digest(files: Mapping[str, bytes]) -> str:
    """Return the sha256 over all names and contents, sorted by name."""
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
    with tarfile.open(archive) as tar:
        if sum(member.size for member in tar) > MOST_BYTES:
            raise UsageError(
                f"{archive} unpacks to over {MOST_BYTES >> 20} MiB", "give the right one."
            )
        tar.extractall(target / "unpacked", filter="data")
    folders = list((target / "unpacked").iterdir())
    return folders[0] if len(folders) == 1 else target / "unpacked"
