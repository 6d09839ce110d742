"""List and hash the files of a run folder without following a link."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from nsabench import limits
from nsabench.errors import VerificationFailed
from nsabench.reading import OutOfBounds, opened, size
from nsabench.running.folder import is_run_file


def listing(folder: Path) -> list[str]:
    """Return the sorted names of all files below `folder`, which must all be files of a run."""
    if not folder.is_dir():
        raise VerificationFailed(f"{folder} is not a folder")
    names, taken = [], 0
    for where, folders, files in os.walk(folder, onerror=_unreadable):
        for entry in sorted(folders + files):
            path = Path(where, entry)
            name = path.relative_to(folder).as_posix()
            found = path.lstat()
            mode = found.st_mode
            if stat.S_ISLNK(mode):
                raise VerificationFailed(f"{name[:200]} is a link, and a run holds none")
            if stat.S_ISREG(mode):
                if not is_run_file(name):
                    raise VerificationFailed(f"{name[:200]!r} is not a file of a run")
                names.append(name)
                taken += found.st_size
                if found.st_size > limits.FILE:
                    raise VerificationFailed(f"{name} has more than {size(limits.FILE)}")
                if len(names) > limits.FILES or taken > limits.FOLDER:
                    raise VerificationFailed(
                        f"the folder has more than {limits.FILES} files or {size(limits.FOLDER)}"
                    )
            elif not stat.S_ISDIR(mode):
                raise VerificationFailed(f"{name} is neither a file nor a folder")
    return sorted(names)


def sha256(folder: Path, name: str) -> str:
    # A link may have been put there after the listing.
    with readable(name), opened(folder / name, limits.FILE, flags=os.O_NOFOLLOW) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn errors about a broken file, also errors of pyarrow, into `VerificationFailed`."""
    try:
        yield
    except OutOfBounds as error:
        raise VerificationFailed(f"{name} {error}") from None
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise VerificationFailed(f"{name} cannot be read: {reason}") from None


def _unreadable(error: OSError) -> None:
    raise VerificationFailed(f"{error.filename} cannot be read: {error.strerror}")
