"""Signing by identity, as far as it goes without the public services: sigstore itself runs here,
and what it refuses is said in a sentence."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

from nsabench.errors import EnvironmentRefused, VerificationFailed
from nsabench.evidence.manifest import MANIFEST, keyless, verify
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.seal import BUNDLE
from nsabench.evidence.manifest.statement import Trust

pytest.importorskip("sigstore")
WHO = ("someone@example.org", "https://issuer.example.org")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "SIGSTORE_ID_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_sigstore_takes_our_statement_as_one(run: Path) -> None:
    """It is what `sign` hands over: sigstore parses it as an in-toto statement."""
    from sigstore.dsse import Statement

    content = Envelope.parse((run / MANIFEST).read_bytes()).content()
    statement = Statement(content)
    assert statement._inner.predicate_type == "urn:nsabench:run:v1"
    assert statement._pae() == b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (
        len(content),
        content,
    )


def test_without_an_identity_nothing_is_signed(run: Path) -> None:
    with pytest.raises(EnvironmentRefused, match="no identity to sign with here"):
        keyless.sign(run)
    assert not (run / BUNDLE).exists()


def test_an_identity_and_no_way_to_sigstore(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()

    now = int(time.time())
    claims = {"iss": WHO[1], "aud": "sigstore", "sub": WHO[0], "iat": now, "exp": now + 600}
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", f"{part({'alg': 'RS256'})}.{part(claims)}.c2ln")
    with pytest.raises(EnvironmentRefused, match="sigstore did not sign"):
        keyless.sign(run)
    assert not (run / BUNDLE).exists()


def self_signed(run: Path) -> str:
    """A bundle over the statement, well-formed and with a good signature, by a certificate that the
    identity made for itself: what a forger can do without sigstore."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    content = Envelope.parse((run / MANIFEST).read_bytes()).content()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    now = datetime.now(UTC)
    issuer = x509.UnrecognizedExtension(
        x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1"), WHO[1].encode()
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(minutes=10))
        .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(WHO[0])]), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CODE_SIGNING]), critical=False
        )
        .add_extension(issuer, critical=False)
        .sign(key, hashes.SHA256())
    )
    kind = "application/vnd.in-toto+json"
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(content), content)

    def b64(data: bytes) -> str:
        return base64.b64encode(data).decode()

    hashed = b64(b"\0" * 32)
    entry = {
        "logIndex": "1",
        "logId": {"keyId": hashed},
        "kindVersion": {"kind": "dsse", "version": "0.0.1"},
        "integratedTime": str(int(time.time())),
        "inclusionPromise": {"signedEntryTimestamp": b64(b"sig")},
        "inclusionProof": {
            "logIndex": "1",
            "rootHash": hashed,
            "treeSize": "2",
            "hashes": [hashed],
            "checkpoint": {"envelope": "rekor.example.org\n2\nAAAA\n\n— rekor AAAA\n"},
        },
        "canonicalizedBody": b64(b'{"apiVersion":"0.0.1","kind":"dsse","spec":{}}'),
    }
    return json.dumps(
        {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {
                    "rawBytes": b64(certificate.public_bytes(serialization.Encoding.DER))
                },
                "tlogEntries": [entry],
            },
            "dsseEnvelope": {
                "payload": b64(content),
                "payloadType": kind,
                "signatures": [{"sig": b64(key.sign(signed, ec.ECDSA(hashes.SHA256())))}],
            },
        }
    )


def test_who_vouches_for_themselves_is_not_believed(run: Path) -> None:
    from sigstore.models import Bundle

    text = self_signed(run)
    Bundle.from_json(text)  # it is a bundle, so what refuses it is the check
    (run / BUNDLE).write_text(text)
    with pytest.raises(VerificationFailed, match=BUNDLE):
        keyless.check(run, *WHO)
    assert verify(run).broken is None, "what the key signed stands as before"
    report = verify(run, identity=WHO, require=Trust.KEYLESS)
    assert report.broken is not None and report.broken.startswith(f"trust: {BUNDLE}: ")
    assert "TUF" not in report.broken, "without a network it is held to the roots that are here"
