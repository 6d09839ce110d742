"""Other tools verify a manifest: openssl and sha256sum, securesystemslib, in-toto."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from nsabench.evidence.manifest import MANIFEST

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "manifest.md"


def by_hand(run):
    """Run the commands of docs/reference/manifest.md, word for word, in a shell."""
    [script] = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    return subprocess.run(
        ["sh", "-eu", "-c", script], cwd=run, capture_output=True, text=True, timeout=60
    )


needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")


@needs_openssl
def test_the_documented_commands_accept_a_run(run, signer):
    done = by_hand(run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Signature Verified Successfully" in done.stdout
    assert "records.parquet: OK" in done.stdout
    assert signer.keyid in done.stdout


@needs_openssl
@pytest.mark.parametrize("name", ["records.parquet", MANIFEST])
def test_the_documented_commands_refuse_an_altered_run(run, name):
    data = bytearray((run / name).read_bytes())
    data[200] ^= 1
    (run / name).write_bytes(data)
    assert by_hand(run).returncode != 0


@needs_openssl
def test_the_documented_commands_refuse_an_added_file(run):
    (run / "logs" / "added.log").write_text("x")
    done = by_hand(run)
    assert done.returncode != 0 and "logs/added.log" in done.stdout


def test_securesystemslib_and_in_toto(run, signer):
    from in_toto.models.metadata import Envelope as InToto

    raw = json.loads((run / MANIFEST).read_text())
    key = SSlibKey.from_crypto(signer.key.public_key(), keyid=signer.keyid)
    for read in (Envelope, InToto):
        envelope = read.from_dict(json.loads(json.dumps(raw)))
        assert set(envelope.verify([key], 1)) == {signer.keyid}
        envelope.payload += b" "
        with pytest.raises(VerificationError):
            envelope.verify([key], 1)
