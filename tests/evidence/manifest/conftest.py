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
def signer():
    return Signer(Ed25519PrivateKey.generate(), ephemeral=False)


@pytest.fixture(scope="session")
def _signed(tmp_path_factory, signer):
    folder = make_run(tmp_path_factory.mktemp("signed") / "run", signer=signer)
    seal(folder, signer)
    return folder


@pytest.fixture
def run(tmp_path, _signed):
    """Return a copy of a signed run that a test may damage."""
    return Path(shutil.copytree(_signed, tmp_path / "run"))


@pytest.fixture
def made(tmp_path):
    """Return the variables that name the files of a new key and its passphrase."""
    (tmp_path / "pass").write_text(f"{PASSPHRASE}\nignored\n")
    keys.generate(tmp_path / "k.key", PASSPHRASE.encode())
    return {KEY_FILE: str(tmp_path / "k.key"), PASSPHRASE_FILE: str(tmp_path / "pass")}
