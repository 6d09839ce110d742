"""The store of an archive: a folder or an S3 bucket."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from nsabench import reading
from nsabench.errors import EnvironmentRefused, UsageError, VerificationFailed

_INSTALL = "install it: pip install 'nsabench[archive]'."
try:
    import obstore
    from obstore import exceptions
    from obstore.store import LocalStore, S3Store
except ImportError as error:
    raise EnvironmentRefused(
        "an archive needs obstore, which is not installed", _INSTALL
    ) from error

# A server that does not answer soon is reported.
RETRIES = 3
PATIENCE = timedelta(seconds=20)


class Store:
    """Objects by name. Every method raises `EnvironmentRefused` if the store fails or refuses."""

    def __init__(self, location: str, *, create: bool = False) -> None:
        self.location = location
        scheme, _, rest = location.partition("://")
        self.folder: Path | None = None
        if not rest:
            folder = Path(location)
            if not create and not folder.is_dir():
                raise UsageError(f"the archive {location} does not exist", "give its folder.")
            self.folder = folder.resolve()
            with self._errors():
                self._store: LocalStore | S3Store = LocalStore(self.folder, mkdir=True)
            return
        if scheme != "s3":
            raise UsageError(f"{location} is neither a folder nor s3://BUCKET/PREFIX", "give one.")
        with self._errors():
            self._store = S3Store.from_url(
                location,
                client_options={
                    "timeout": "20s",
                    "connect_timeout": "5s",
                    "allow_http": _names_http(),
                },
                retry_config={"max_retries": RETRIES, "retry_timeout": PATIENCE},
            )

    def names(self) -> list[str]:
        return sorted(self.stamps())

    def stamps(self) -> dict[str, str]:
        """Return a stamp of each object by name. It changes if the object is replaced."""
        with self._errors():
            if self.folder is not None:
                return dict(_files(self.folder))
            entries = obstore.list(self._store).collect()
            return {entry["path"]: _stamp(entry) for entry in entries}

    def read(self, name: str, most: int) -> bytes:
        """Raises `VerificationFailed` if the object is missing or has more than `most` bytes."""
        with self._errors():
            try:
                if self.folder is not None:
                    return reading.read(self.folder / name, most)
                found = obstore.get(self._store, name)
                if found.meta["size"] > most:
                    raise VerificationFailed(f"{name} has more than {most} bytes")
                return bytes(found.bytes())
            except FileNotFoundError:
                raise VerificationFailed(f"{name} is missing") from None
            except reading.OutOfBounds as error:
                raise VerificationFailed(f"{name} {error}") from None

    def as_file(self, name: str, scratch: Path, most: int) -> Path:
        """Return an object as a file. An object from a bucket is copied into `scratch`."""
        if self.folder is not None:
            return self.folder / name
        # The name of an object may be longer than a file name, and hold other characters.
        path = scratch / f"{hashlib.sha256(name.encode()).hexdigest()}.parquet"
        if not path.exists():
            path.write_bytes(self.read(name, most))
        return path

    def create(self, name: str, data: bytes) -> bool:
        """Write an object. Return False if it exists; then it stays as it is."""
        with self._errors():
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                return False
        return True

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            sentence = " ".join(str(error).split())[:300]
            raise EnvironmentRefused(
                f"{self.location}: {sentence}",
                "check the address, the AWS_* variables and what they may do there.",
            ) from error


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and stamp of each file below a folder. Links are left out."""
    for where, _, names in os.walk(folder, onerror=_unreadable):
        for name in names:
            path = Path(where, name)
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue  # removed meanwhile
            if stat.S_ISREG(found.st_mode):
                # No program can set st_ctime_ns.
                stamp = f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
                yield path.relative_to(folder).as_posix(), stamp


def _unreadable(error: OSError) -> NoReturn:
    raise error


def _stamp(entry: Mapping[str, Any]) -> str:
    return f"{entry['e_tag']} {entry['version']} {entry['size']} {entry['last_modified']}"


def _names_http() -> bool:
    named = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    return any(endpoint.startswith("http://") for endpoint in named)
