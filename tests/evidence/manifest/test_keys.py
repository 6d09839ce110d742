"""Signing keys are generated, loaded, trusted and revoked, and unusable ones are refused."""

import json
import re
import stat
import subprocess
from datetime import date

import pytest

from nsabench.errors import UsageError
from nsabench.evidence.manifest import seal, verify
from nsabench.evidence.manifest.keys import (
    TRUSTED,
    Revocation,
    Why,
    revocations,
    trusted_keyids,
)
from nsabench.evidence.manifest.statement import Trust
from nsabench.signing import keys, load_signer
from nsabench.signing.signer import KEY, KEY_FILE, PASSPHRASE_FILE
from tests.commands import nsabench as nsabench
from tests.evidence.manifest.conftest import PASSPHRASE
from tests.runs import make_run

KEYID = "a" * 64


def test_a_generated_key_is_encrypted_and_private(tmp_path, made):
    path = tmp_path / "k.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    signer = load_signer(made)
    assert signer.keyid == keys.keyid_of(*keys.read_publics(tmp_path / "k.key.pub"))
    assert not signer.ephemeral


def test_a_generated_key_is_dear_to_guess_and_opens_with_openssl(tmp_path, made):
    """The default of the package cryptography has fewer rounds."""
    command = ("openssl", "asn1parse", "-in", tmp_path / "k.key")
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [rounds] = re.findall(r"INTEGER\s+:(\w+)", shown)
    assert int(rounds, 16) == keys.ROUNDS >= 600_000 and "hmacWithSHA256" in shown
    command = ("openssl", "pkey", "-in", tmp_path / "k.key", "-pubout", "-passin")
    opened = subprocess.run([*command, f"pass:{PASSPHRASE}"], capture_output=True, check=True)
    assert opened.stdout == (tmp_path / "k.key.pub").read_bytes()


def test_a_passphrase_that_anybody_guesses_is_refused(tmp_path):
    with pytest.raises(UsageError, match="the passphrase has 1 bytes"):
        keys.generate(tmp_path / "k.key", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_key_file_that_all_may_read_is_refused(tmp_path, made):
    (tmp_path / "k.key").chmod(0o644)
    with pytest.raises(UsageError, match="every user of this machine may read") as raised:
        load_signer(made)
    assert "chmod 600" in raised.value.remedy
    (tmp_path / "k.key").chmod(0o640)
    assert not load_signer(made).ephemeral, "the group of the file may read it"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({PASSPHRASE_FILE: ""}, "is encrypted"),
        ({PASSPHRASE_FILE: "/dev/null"}, "holds no passphrase"),
        ({PASSPHRASE_FILE: "/etc/hostname"}, "passphrase is wrong"),
        ({KEY_FILE: "/no/such/file"}, "cannot be read"),
        ({KEY_FILE: "/dev/null"}, "cannot be read, or"),
        ({KEY: "x"}, "are both set"),
    ],
)
def test_a_key_that_cannot_be_used(made, change, sentence):
    with pytest.raises(UsageError, match=sentence) as raised:
        load_signer({**made, **change})
    assert raised.value.remedy


def test_keys_are_trusted_by_a_file_and_by_a_folder(tmp_path, made, monkeypatch):
    keyid = load_signer(made).keyid
    for variable in (tmp_path, tmp_path / "k.key.pub"):
        monkeypatch.setenv(TRUSTED, str(variable))
        assert trusted_keyids() == {keyid}


def test_the_commands(tmp_path, nsabench, made):
    run = make_run(tmp_path / "run", signer=load_signer(made))
    public = tmp_path / "k.key.pub"
    [shown] = json.loads(nsabench("key", "show", public, "--json").stdout)
    assert shown["keyid"] == load_signer(made).keyid
    seal(run, load_signer(made))
    report = json.loads(nsabench("verify", run, "--key", public, "--json").stdout)
    assert (report["ok"], report["trust"], report["keyid"]) == (True, "pinned", shown["keyid"])

    done = nsabench("key", "generate", "--out", "new.key", NSABENCH_SIGNING_KEY_PASSPHRASE_FILE="")
    assert done.returncode == 2 and "passphrase" in done.stderr
    done = nsabench("key", "generate", "--out", "new.key", **made)
    assert done.returncode == 0 and PASSPHRASE not in done.stdout
    assert (tmp_path / "new.key").exists()


@pytest.mark.parametrize("there", ["k.key", "k.key.pub"])
def test_neither_half_is_written_where_one_is_there(tmp_path, there):
    (tmp_path / there).write_text("another's")
    with pytest.raises(UsageError, match="is there already"):
        keys.generate(tmp_path / "k.key", PASSPHRASE.encode())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["another's"]


def test_a_half_that_cannot_be_written_takes_the_other_away(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "public_path", lambda path: path.with_name("x" * 300))
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        keys.generate(tmp_path / "k.key", PASSPHRASE.encode())
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_several_keys_means_all_of_them(tmp_path):
    made = [keys.generate(tmp_path / f"{n}.key", PASSPHRASE.encode()) for n in range(3)]
    both = tmp_path / "team.pub"
    both.write_bytes(b"# ours\n" + b"\n".join(keys.public_pem(key) for key in made))
    expected = {keys.keyid_of(key) for key in made}
    assert trusted_keyids((both,)) == expected
    both.write_bytes(both.read_bytes() + b"-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(UsageError, match="nothing else"):
        trusted_keyids((both,))


def listed(tmp_path, *lines):
    path = tmp_path / "revoked"
    path.write_text("# keyid, since when, why\n\n" + "\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("since", "why", "holds"),
    [
        ("2000-01-01", "superseded", False),
        ("2999-01-01", "superseded", True),
        ("2999-01-01", "compromised", False),
    ],
)
def test_a_revoked_key(run, tmp_path, signer, nsabench, since, why, holds):
    """Signatures that a superseded key made before `since` hold. Signatures of a compromised key
    never hold."""
    path = listed(tmp_path, f"{signer.keyid} {since} {why}  # told by its owner")
    revoked = revocations((path,))
    for required in (Trust.EPHEMERAL, Trust.PINNED):
        report = verify(run, trusted=[signer.keyid], require=required, revoked=revoked)
        assert (report.broken is None) is holds, report.broken
    if not holds:
        assert f"which is {why} since {since}" in (report.broken or "")
    by_option = nsabench("verify", run, "--revoked", path)
    by_variable = nsabench("verify", run, NSABENCH_REVOKED_KEYS=str(path))
    assert [by_option.returncode, by_variable.returncode] == [0 if holds else 4] * 2


def test_the_strictest_line_about_a_key_counts(tmp_path):
    lines = [f"{KEYID} {day} {why}" for day, why in STRICTER]
    for order in (lines, lines[::-1]):
        found = revocations((listed(tmp_path, *order),))
        assert found == {KEYID: Revocation(date(2027, 5, 1), Why.COMPROMISED)}


STRICTER = [
    ("2026-01-01", "superseded"),
    ("2027-05-01", "compromised"),
    ("2027-06-01", "compromised"),
]


@pytest.mark.parametrize(
    "line",
    [
        "abc 2026-01-01 superseded",
        f"{'a' * 64} yesterday superseded",
        f"{'a' * 64} 2026-01-01 lost",
    ],
)
def test_a_list_that_revokes_nothing(tmp_path, line):
    with pytest.raises(UsageError, match=r"revoked:3 "):
        revocations((listed(tmp_path, line),))


def test_nothing_is_begun_with_a_revoked_key(tmp_path, nsabench, made):
    """Otherwise the run would fail only when it is signed, hours later."""
    path = listed(tmp_path, f"{load_signer(made).keyid} 2000-01-01 superseded")
    run = tmp_path / "run"
    done = nsabench("all", "quick", "--out", run, NSABENCH_REVOKED_KEYS=str(path), **made)
    assert done.returncode == 2 and "which is superseded since 2000-01-01" in done.stderr
    assert not run.exists()
