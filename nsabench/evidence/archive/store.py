"""The store of an archive: a folder or an S3 bucket."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nsabench import reading
from nsabench.errors import EnvironmentRefused, UsageError, VerificationFailed

INSTALL = "install it: pip install -e '.[archive]' in the checkout."
try:
    import obstore
    from obstore import exceptions
    from obstore.store import LocalStore, S3Store
except ImportError as error:
    raise EnvironmentRefused("an archive needs obstore, which is not installed", INSTALL) from error

# If a server does not answer soon, report it instead of waiting.
RETRIES = 3
PATIENCE = timedelta(seconds=20)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ENDPOINT = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d*)?(/[!-~]*)?", re.ASCII)
_IN_HEADERS = ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
# Each entry: a part of obstore's message, such as an S3 code; what is wrong; what to do.
_REFUSALS = (
    (
        "SignatureDoesNotMatch",
        "the server does not accept the secret key",
        "correct AWS_SECRET_ACCESS_KEY.",
    ),
    (
        "InvalidAccessKeyId",
        "the server does not know the access key",
        "correct AWS_ACCESS_KEY_ID.",
    ),
    ("ExpiredToken", "the credentials have expired", "get new ones, and set AWS_SESSION_TOKEN."),
    (
        "RequestTimeTooSkewed",
        "the clocks of this machine and of the server differ too much",
        "set the clock of this machine: `timedatectl set-ntp true`.",
    ),
    ("NoSuchBucket", "there is no such bucket", "make the bucket, or correct the address."),
    (
        "AccessDenied",
        "the access key does not have the permission",
        "ask for the permissions to list and read objects, and for `archive add` to write them.",
    ),
    ("Missing AccessKeyId", "AWS_ACCESS_KEY_ID is not set", "set it as well as the secret key."),
    (
        "Missing SecretAccessKey",
        "AWS_SECRET_ACCESS_KEY is not set",
        "set it as well as AWS_ACCESS_KEY_ID.",
    ),
    (
        "169.254.169.254",  # the address at which a machine in a cloud gets credentials
        "there are no credentials: AWS_ACCESS_KEY_ID is not set, and this machine has no role",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
    (
        "error sending request",
        "no server answers",
        "check the network and AWS_ENDPOINT_URL; unset it for Amazon's own servers.",
    ),
)


class Store:
    """Objects by name. Methods raise `EnvironmentRefused` if the store fails or denies access."""

    def __init__(self, location: str, *, create: bool = False) -> None:
        self.location = location
        self.folder: Path | None = None
        if not re.match(r"s3:|\w+://", location):
            folder = Path(location)
            if not create and not folder.is_dir():
                raise UsageError(f"the archive {location} does not exist", "give its folder.")
            self.folder = folder.resolve()
            with self._errors():
                self._store: LocalStore | S3Store = LocalStore(self.folder, mkdir=True)
            return
        if not re.match(r"s3://[\w.-]+(/|$)", location, re.ASCII):
            raise UsageError(
                f"{location} is neither a folder nor s3://BUCKET/PREFIX", "correct the address."
            )
        _refuse_odd_variables()
        endpoint = _read_endpoint()
        with self._errors():
            self._store = S3Store.from_url(
                location,
                client_options={
                    "timeout": "20s",
                    "connect_timeout": "5s",
                    "allow_http": endpoint.startswith("http://"),
                },
                retry_config={"max_retries": RETRIES, "retry_timeout": PATIENCE},
            )

    def names(self) -> list[str]:
        return sorted(self.stamps())

    def stamps(self) -> dict[str, str]:
        """Return a stamp for each object, which changes if the object is replaced."""
        with self._errors():
            if self.folder is not None:
                return dict(_files(self.folder))
            entries = obstore.list(self._store).collect()
            return {entry["path"]: _stamp(entry) for entry in entries}

    def read(self, name: str, most: int) -> bytes:
        """Read an object. Raises `VerificationFailed` if it is missing or has over `most` bytes."""
        with self._errors():
            try:
                if self.folder is not None:
                    return reading.read(self.folder / name, most)
                found = obstore.get(self._store, name)
                if found.meta["size"] > most:
                    raise VerificationFailed(f"{name} has more than {most} bytes")
                return bytes(found.bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                raise VerificationFailed(f"{name} is missing") from None
            except reading.OutOfBounds as error:
                raise VerificationFailed(f"{name} {error}") from None

    def create(self, name: str, data: bytes) -> bool:
        """Write an object and return True, or return False if it exists already."""
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
            sentence = " ".join(str(error).partition("\n\nDebug source")[0].split())[:300]
            remedy = "check the address, the AWS_* variables and their permissions."
            if self.folder is not None:
                remedy = "make room on its disk, or make it writable."
            for sign, what, to_do in _REFUSALS if self.folder is None else ():
                if sign in str(error):
                    sentence, remedy = what, to_do
                    break
            raise EnvironmentRefused(f"{self.location}: {sentence}", remedy) from error


def _refuse_odd_variables() -> None:
    """Raise `UsageError` if a variable's value cannot be in a header: obstore would panic."""
    for name in _IN_HEADERS:
        if re.search(r"[^!-~]", os.environ.get(name, "")):
            raise UsageError(
                f"{name} has a blank, a line break or another odd character",
                "set it without that character; a file with the value may end in a blank line.",
            )


def _read_endpoint() -> str:
    """Return the server's address, or "" for Amazon's. Refuse any on which obstore would panic."""
    for name in _ENDPOINTS:
        endpoint = os.environ.get(name)
        if endpoint is None:
            continue
        with suppress(ValueError):
            if _ENDPOINT.fullmatch(endpoint) and urlsplit(endpoint).port != 0:
                return endpoint
        raise UsageError(
            f"{name} is {endpoint!r} and not an address such as https://s3.example.org",
            "begin it with http:// or https://, or unset it for Amazon's servers.",
        )
    return ""


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and stamp of each file below a folder. Links are left out."""
    above = len(str(folder / "x")) - 1
    folders = [str(folder)]
    while folders:
        for entry in os.scandir(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # removed meanwhile
                    found = entry.stat(follow_symlinks=False)
                    # A program can set the time of modification, but not st_ctime_ns.
                    times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
                    yield entry.path[above:], f"{found.st_ino} {found.st_size} {times}"


def _stamp(entry: Mapping[str, Any]) -> str:
    return f"{entry['e_tag']} {entry['version']} {entry['size']} {entry['last_modified']}"
