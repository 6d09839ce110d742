"""A signed run on a CUDA device is killed and resumed, and its kernel seeks the signing key."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nsabench.evidence.manifest import verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.signing import keys
from nsabench.signing.signer import KEY

pytestmark = pytest.mark.gpu


SPY = Path(__file__).parents[1] / "signing" / "spy.py"
TEN = """
op: selection_rows
axes: {dtype: float16, N: [64, 256], H: 4, D: 64, L: [64, 128, 256, 512, 1024]}
implementations: {only: [sdpa_gqa, mine]}
timing: {stopping: {kind: fixed_count, rounds: 10}}
"""


@pytest.mark.untimed
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_is_resumed_in_its_keys_name_and_no_kernel_sees_the_key(tmp_path):
    key = tmp_path / "signing.key"
    public = keys.generate(key, b"correct horse")
    private = keys.private_key(key.read_bytes(), "", b"correct horse")
    pem = keys.private_pem(private).decode()
    needles = {"seed": private.private_bytes_raw(), "text": pem.splitlines()[1].encode()}
    task = {
        "needles": {name: needle.hex() for name, needle in needles.items()},
        "left_out": [os.getpid(), os.getppid()],  # the test itself holds the key
        "files": [],
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    (tmp_path / "m.yaml").write_text(TEN)
    others = {name: value for name, value in os.environ.items() if not name.startswith(KEY)}
    environment = {**others, "SPY": str(tmp_path / "task.json"), KEY: pem}
    run = tmp_path / "run"
    command = [sys.executable, "-m", "nsabench", "all"]
    begun = subprocess.Popen(
        # The sandbox would keep the spy from writing what it finds.
        [*command, "m.yaml", "--device", "cuda", "--no-sandbox", "--out", run, "--kernels", SPY],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found, first = tmp_path / "found.json", tmp_path / "first.json"
    log, deadline = run / "log.jsonl", time.monotonic() + 240
    # Wait until one of the ten cases is measured and the spy has looked.
    while not (found.is_file() and b'"kind":"ended"' in log.read_bytes()):
        assert begun.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(begun.pid).children(recursive=True)
    begun.send_signal(signal.SIGKILL)
    begun.wait(30)
    # No worker outlives its run.
    assert psutil.wait_procs(children, 30)[1] == []
    found.rename(first)
    (tmp_path / "claim").unlink()  # so that the spy looks again
    with subprocess.Popen(
        [*command, "--resume", run],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as resumed:
        try:
            told, _ = resumed.communicate(timeout=200)
        finally:
            resumed.kill()
    assert resumed.returncode in (0, 1), told[-2000:]
    report = verify(run, trusted=[keys.keyid_of(public)], require=Trust.PINNED)
    assert report.broken is None, report.broken
    for process, seen in ((begun, first), (resumed, found)):
        processes = json.loads(seen.read_text())["processes"]
        assert str(process.pid) in processes
        read = [
            (pid, where, what)
            for pid, places in processes.items()
            for where, what in places.items()
            if isinstance(what, list) and what
        ]
        assert read == []
