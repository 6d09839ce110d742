"""Keys: where they come from, what is refused, and that nothing of them shows."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from nsabench.errors import UsageError
from nsabench.evidence.manifest import seal, verify
from nsabench.evidence.manifest.keys import TRUSTED, trusted_keyids
from nsabench.evidence.manifest.statement import Trust
from nsabench.signing import keys, load_signer
from nsabench.signing.signer import KEY, KEY_FILE, PASSPHRASE_FILE
from tests.cli.conftest import Nsabench
from tests.cli.conftest import nsabench as nsabench

PASSPHRASE = "correct horse"


@pytest.fixture
def made(tmp_path: Path) -> dict[str, str]:
    """Variables that name a fresh key and its passphrase."""
    (tmp_path / "pass").write_text(f"{PASSPHRASE}\nignored\n")
    keys.generate(tmp_path / "k.key", PASSPHRASE.encode())
    return {
        KEY_FILE: str(tmp_path / "k.key"),
        PASSPHRASE_FILE: str(tmp_path / "pass"),
    }


def test_a_generated_key_is_encrypted_and_private(tmp_path: Path, made: dict[str, str]) -> None:
    path = tmp_path / "k.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    signer = load_signer(made)
    assert signer.keyid == keys.keyid_of(*keys.read_publics(tmp_path / "k.key.pub"))
    assert not signer.ephemeral


def test_a_key_in_a_variable(tmp_path: Path, made: dict[str, str]) -> None:
    text = {KEY: (tmp_path / "k.key").read_text()}
    both = {**text, PASSPHRASE_FILE: made[PASSPHRASE_FILE]}
    assert load_signer(both).keyid == load_signer(made).keyid


def test_without_a_key_the_signature_is_ephemeral() -> None:
    one, other = load_signer({}), load_signer({})
    assert one.ephemeral and one.keyid != other.keyid


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({PASSPHRASE_FILE: ""}, "is encrypted"),
        ({PASSPHRASE_FILE: "/dev/null"}, "holds no passphrase"),
        ({PASSPHRASE_FILE: "/etc/hostname"}, "its passphrase is another one"),
        ({KEY_FILE: "/no/such/file"}, "cannot be read"),
        ({KEY_FILE: "/etc/hostname"}, "cannot be read, or"),
        ({KEY: "x"}, "are both set"),
    ],
)
def test_a_key_that_cannot_be_used(
    made: dict[str, str], change: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as raised:
        load_signer({**made, **change})
    assert raised.value.remedy


def test_a_key_is_never_overwritten(tmp_path: Path, made: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="is there already"):
        keys.generate(tmp_path / "k.key", b"x")


def test_trust_levels(run: Path, tmp_path: Path, made: dict[str, str]) -> None:
    signer = load_signer(made)
    seal(run, signer)
    assert verify(run).trust is Trust.UNPINNED
    for variable in (tmp_path, tmp_path / "k.key.pub"):
        trusted = trusted_keyids((), {TRUSTED: str(variable)})
        assert verify(run, trusted=trusted).trust is Trust.PINNED
    seal(run, load_signer({}))
    assert verify(run, trusted=trusted).trust is Trust.EPHEMERAL


def test_the_commands(run: Path, tmp_path: Path, nsabench: Nsabench, made: dict[str, str]) -> None:
    public = tmp_path / "k.key.pub"
    [shown] = json.loads(nsabench("key", "show", public, "--json").stdout)
    [by_key] = json.loads(nsabench("key", "show", "--json", **made).stdout)
    assert shown == by_key
    seal(run, load_signer(made))
    report = json.loads(nsabench("verify", run, "--key", public, "--json").stdout)
    assert (report["ok"], report["trust"], report["keyid"]) == (True, "pinned", shown["keyid"])

    (run / "records.parquet").write_bytes(b"PAR1")
    done = nsabench("verify", run)
    assert done.returncode == 4
    assert "records.parquet was changed after the signature" in done.stderr
    assert "remedy" in done.stderr

    done = nsabench("key", "generate", "--out", "new.key", NSABENCH_SIGNING_KEY_PASSPHRASE_FILE="")
    assert done.returncode == 2 and "passphrase" in done.stderr
    done = nsabench("key", "generate", "--out", "new.key", **made)
    assert done.returncode == 0 and PASSPHRASE not in done.stdout
    assert (tmp_path / "new.key").exists()


@pytest.mark.parametrize(
    "arguments", [["verify"], ["key"], ["key", "generate"], ["key", "show"], ["key", "serve"]]
)
def test_help_has_an_example(nsabench: Nsabench, arguments: list[str]) -> None:
    assert "Example: nsabench" in nsabench(*arguments, "--help").stdout
