from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.evidence.manifest import seal
from nsabench.signing import Signer, keys
from nsabench.signing.signer import KEY_FILE, PASSPHRASE_FILE
from tests.runs import make_run

PASSPHRASE = "correct horse"


@pytest.fixture(scope="session")
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.generate(), ephemeral=False)


@pytest.fixture(scope="session")
def _signed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Path:
    folder = make_run(tmp_path_factory.mktemp("signed") / "run", signer=signer)
    seal(folder, signer)
    return folder


@pytest.fixture
def run(tmp_path: Path, _signed: Path) -> Path:
    """A signed run that a test may damage."""
    return Path(shutil.copytree(_signed, tmp_path / "run"))


@pytest.fixture
def made(tmp_path: Path) -> dict[str, str]:
    """Variables that name a fresh key and its passphrase."""
    (tmp_path / "pass").write_text(f"{PASSPHRASE}\nignored\n")
    keys.generate(tmp_path / "k.key", PASSPHRASE.encode())
    return {KEY_FILE: str(tmp_path / "k.key"), PASSPHRASE_FILE: str(tmp_path / "pass")}
