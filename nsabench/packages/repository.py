"""Libraries that are no packages: a repository at one commit, held to the sha256 of its files.

They lie in a folder of this user's cache, or in that which `NSABENCH_PACKAGES` names. They come
there from GitHub, or from a folder or archive given by hand on a host without network.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.files import user_cache, writing

FOLDER = "NSABENCH_PACKAGES"
GITHUB = "https://codeload.github.com"
MOST_BYTES = 64 << 20  # of an archive, and of what is in it
TIMEOUT_S = 60
_SKIPPED = {".git", "__pycache__"}
_MARK = ".nsabench"  # holds the digest of what lies here, repairs included

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Repair:
    """A text of a file that is replaced when the repository is brought, since without it the file
    does not run here. why: what records and pages say of it."""

    file: str
    old: str
    new: str
    why: str


@dataclass(frozen=True)
class Repository:
    """A repository on GitHub at a commit. sha256: of all its files, names and contents."""

    owner: str
    name: str
    commit: str
    sha256: str
    repairs: tuple[Repair, ...] = ()

    @property
    def archive(self) -> str:
        """Where GitHub serves it as one file."""
        return f"{GITHUB}/{self.owner}/{self.name}/tar.gz/{self.commit}"


def folder() -> Path:
    """Where repositories lie."""
    named = os.environ.get(FOLDER)
    return Path(named).absolute() if named else user_cache() / "packages"


def at(repository: Repository) -> Path:
    """Where a repository lies, if it is here."""
    return folder() / f"{repository.name}-{repository.commit[:12]}"


def is_here(repository: Repository) -> bool:
    """Whether it was brought, at that commit and with those repairs."""
    try:
        return (at(repository) / _MARK).read_text() == _brought(repository)
    except OSError:
        return False


@contextmanager
def importable(repository: Repository) -> Iterator[None]:
    """Let Python find its modules, behind those that are installed."""
    path = str(at(repository))
    sys.path.append(path)
    try:
        yield
    finally:
        sys.path.remove(path)


def fetch(repository: Repository, source: Path | None = None) -> Path:
    """Bring it, repairs made; the folder it then lies in.

    source: a folder with its files (a checkout, say) or an archive of them; None: from GitHub.
    Raises `UsageError` when the files are not those of the commit, or the source cannot be read,
    and `EnvironmentRefused` where GitHub cannot be reached or the folder not written.
    """
    files = _given(source) if source is not None else _unpacked(_download(repository))
    found = digest(files)
    if found != repository.sha256:
        raise UsageError(
            f"the files of {source or repository.archive} have the sha256 {found[:12]}, and those "
            f"of {repository.name} {repository.commit[:12]} have {repository.sha256[:12]}",
            f"give a checkout of commit {repository.commit}, without further files.",
        )
    target = at(repository)
    with writing(target, "fetch it again"):
        shutil.rmtree(target, ignore_errors=True)
        for name, content in _repaired(repository, files).items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (target / _MARK).write_text(_brought(repository))
    return target


def digest(files: Files) -> str:
    """The sha256 over names and contents, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0".encode() + hashlib.sha256(files[name]).digest())
    return total.hexdigest()


def _brought(repository: Repository) -> str:
    """What stands in the mark of a folder that holds it."""
    repairs = "".join(f"\n{r.file}: {r.why}" for r in repository.repairs)
    return f"{repository.commit} {repository.sha256}{repairs}\n"


def _repaired(repository: Repository, files: Files) -> dict[str, bytes]:
    repaired = dict(files)
    for repair in repository.repairs:
        before = repaired[repair.file].decode()
        if before.count(repair.old) != 1:
            raise UsageError(
                f"{repair.file} of {repository.name} does not hold {repair.old!r} once",
                "report it: the catalogue of nsabench is wrong about this commit.",
            )
        repaired[repair.file] = before.replace(repair.old, repair.new).encode()
    return repaired


def _given(source: Path) -> dict[str, bytes]:
    try:
        if source.is_dir():
            return _of_folder(source)
        return _unpacked(source.read_bytes())
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}", "check the path.") from None


def _of_folder(source: Path) -> dict[str, bytes]:
    files = {}
    for path in source.rglob("*"):
        name = path.relative_to(source)
        if not _SKIPPED & set(name.parts) and path.name != _MARK and path.is_file():
            files[name.as_posix()] = path.read_bytes()
    return files


def _download(repository: Repository) -> bytes:
    remedy = (
        f"fetch it elsewhere, and give the folder: nsabench packages fetch {repository.name} "
        "--from FOLDER."
    )
    try:
        with urllib.request.urlopen(repository.archive, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(MOST_BYTES + 1)
    except (urllib.error.URLError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        raise EnvironmentRefused(f"{repository.archive} cannot be had: {reason}", remedy) from error
    if len(content) > MOST_BYTES:
        raise EnvironmentRefused(f"{repository.archive} is over {MOST_BYTES >> 20} MiB", remedy)
    return content


def _unpacked(archive: bytes) -> dict[str, bytes]:
    """The regular files of a tar archive, by their names beneath its one top-level folder."""
    files: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                inner = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                if not member.isfile() or ".." in inner.parts or not inner.parts:
                    continue
                total += member.size
                if total > MOST_BYTES:
                    raise UsageError(
                        f"the archive holds over {MOST_BYTES >> 20} MiB", "give the right one."
                    )
                content = tar.extractfile(member)
                assert content is not None
                files[inner.as_posix()] = content.read()
    except tarfile.TarError as error:
        raise UsageError(f"that is no tar archive: {error}", "give one, or a folder.") from error
    return files
