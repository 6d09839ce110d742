"""A hostile kernel in a real run finds no signing key, and the run says what it could find.

These runs have no sandbox, because not every operating system can hide files from a kernel.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.evidence.manifest import verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.signing import keys
from nsabench.signing.secrecy import CAP_SYS_PTRACE, PR_CAPBSET_DROP
from nsabench.signing.signer import KEY, KEY_FILE, PASSPHRASE_FILE

SPY = Path(__file__).parent / "spy.py"
PASSPHRASE = b"correct horse battery staple"
ONE = """
op: selection_rows
axes: {N: 4, H: 2, D: 32, L: [8]}
implementations: {only: [sdpa_gqa, mine]}
timing:
  warmup_s: 0.005
  stopping: {kind: fixed_count, rounds: 12}
"""


def unprivileged():
    """Drop the right to trace any process, with which any kernel could read the key."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)


class Stage:
    """A key, a run with the spy in it, and what the spy looks for."""

    def __init__(self, folder):
        self.folder = folder
        # Older processes cannot hold the new key, and searching their memory could take long.
        self.older = psutil.pids()
        self.run = folder / "run"
        self.key = folder / "signing.key"
        self.public = keys.generate(self.key, PASSPHRASE)
        self.private = keys.private_key(self.key.read_bytes(), "", PASSPHRASE)
        self.pem = keys.private_pem(self.private).decode()
        (folder / "one.yaml").write_text(ONE)
        self.needles = {
            "seed": self.private.private_bytes_raw(),
            "text": self.pem.splitlines()[1].encode(),
            "passphrase": PASSPHRASE,
        }

    def measure(self, *files, passphrase=b"", as_root=False, **variables):
        """Run `nsabench all` with these variables; a passphrase goes through a pipe."""
        task = self.folder / "task.json"
        # The test knows the secrets itself. Its parent processes may also have them in memory.
        above = [p.pid for p in psutil.Process().parents()]
        task.write_text(
            json.dumps(
                {
                    "needles": {name: needle.hex() for name, needle in self.needles.items()},
                    "left_out": [os.getpid(), *above, *self.older],
                    "files": [str(path) for path in files],
                }
            )
        )
        environment = {**os.environ, "SPY": str(task), **variables}
        pipe, end = os.pipe()
        os.write(end, passphrase + b"\n")
        os.close(end)
        if passphrase:
            environment[PASSPHRASE_FILE] = f"/dev/fd/{pipe}"
        matrix, kernels = self.folder / "one.yaml", ("--kernels", SPY)
        begun = (sys.executable, "-m", "nsabench")
        self.process = subprocess.Popen(
            [*begun, "all", matrix, "--device", "cpu", "--no-sandbox", "--out", self.run, *kernels],
            env=environment,
            pass_fds=[pipe],
            preexec_fn=None if as_root else unprivileged,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.close(pipe)
        self.said, _ = self.process.communicate(timeout=250)
        assert self.process.returncode in (0, 1), self.said
        found = json.loads((self.folder / "found.json").read_text())
        assert str(self.process.pid) in found["processes"] and found["parent"] == self.process.pid
        return found

    def is_signed(self):
        report = verify(self.run, trusted=[keys.keyid_of(self.public)], require=Trust.PINNED)
        return report.broken is None


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


@pytest.fixture
def decoy(stage):
    """Start a process that does not hide the key. It shows that the spy searches processes."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
        env={"TEXT": stage.pem},
        stdout=subprocess.PIPE,
        preexec_fn=unprivileged,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


def hits(found, *, but=0):
    """Return where the spy found secrets, except in the process `but`."""
    return [
        (pid, where, what)
        for pid, places in found["processes"].items()
        for where, what in places.items()
        if isinstance(what, list) and what and int(pid) != but
    ]


def test_a_key_in_a_variable_is_in_no_process_that_a_kernel_can_read(stage, decoy):
    passphrase = stage.folder / "passphrase"
    passphrase.write_bytes(PASSPHRASE + b"\n")
    found = stage.measure(passphrase, **{KEY: stage.pem})
    assert found["processes"][str(decoy)] == {"environ": ["text"], "memory": ["text"]}
    assert hits(found, but=decoy) == []
    own = found["processes"][str(stage.process.pid)]
    assert own["memory"] == "PermissionError"
    assert own["environ"] in ("PermissionError", []), "Linux refuses it, or shows it empty"
    assert stage.is_signed()
    # Without a sandbox, a kernel can read the user's files. The run says so.
    assert found["files"] == {str(passphrase): ["passphrase"]}
    assert "can reach this user's files, runs and keys" in " ".join(stage.said.split())


def test_a_key_file_that_is_opened_through_a_pipe(stage):
    found = stage.measure(
        stage.key, passphrase=PASSPHRASE, as_root=True, **{KEY_FILE: str(stage.key)}
    )
    assert hits(found) == [] and found["files"] == {str(stage.key): []}
    assert stage.is_signed()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which has capabilities to hand on")
@pytest.mark.parametrize("inheritable", ["-all", "+sys_ptrace"])
def test_children_may_not_trace_the_run(inheritable):
    """Some container engines start root with inheritable capabilities."""
    code = (
        "import subprocess\nfrom nsabench.signing.secrecy import seclude\nseclude()\n"
        "subprocess.run(['grep', 'CapEff', '/proc/self/status'])"
    )
    command = ["setpriv", f"--inh-caps={inheritable}", sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not int(said.split()[1], 16) >> 19 & 1


def test_the_first_environment_of_the_run_is_wiped(stage):
    """Root and monitors can read this environment, whatever the process forbids."""
    other = keys.private_pem(Ed25519PrivateKey.generate()).decode()
    code = (
        "import os, sys\nfrom nsabench.signing.secrecy import seclude, variables\n"
        f"assert os.environ['{KEY}']\nseclude()\n"
        f"assert '{KEY}' not in os.environ and variables()['{KEY}'].startswith('-----BEGIN')\n"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, KEY: other},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        try:
            content = Path(f"/proc/{process.pid}/environ").read_bytes()
        except PermissionError:
            pytest.skip("needs the right to trace any process")
        assert other.splitlines()[1].encode() not in content and b"PATH=" in content
