"""Where an archive lies: a folder or an S3 bucket, behind the few operations it needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

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

# A server that is gone is said to be gone, instead of being waited for.
RETRIES = 3
PATIENCE = timedelta(seconds=20)


class Store:
    """Objects by name. Every method raises `EnvironmentRefused` when the place cannot be reached or
    does not let us in."""

    def __init__(self, location: str, *, create: bool = False) -> None:
        self.location = location
        scheme, _, rest = location.partition("://")
        # Both are set where the objects are files that other programs can open in place.
        self.folder: Path | None = None
        if not rest:
            folder = Path(location)
            if not create and not folder.is_dir():
                raise UsageError(f"there is no archive in {location}", "give its folder.")
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
        """Names of all objects, sorted."""
        with self._errors():
            entries = obstore.list(self._store).collect()
        return sorted(entry["path"] for entry in entries)

    def read(self, name: str) -> bytes:
        """Raises `VerificationFailed` when there is no such object."""
        with self._errors():
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                raise VerificationFailed(f"{name} is missing") from None

    def create(self, name: str, data: bytes) -> bool:
        """Write an object where there is none. False: there is one already, left as it is."""
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


def _names_http() -> bool:
    """Whether whoever set the endpoint wrote http:// into it, as for a server on loopback."""
    named = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    return any(endpoint.startswith("http://") for endpoint in named)
