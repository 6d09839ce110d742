"""Real runs under two Tritons. The older one is the installed Triton by another name."""

import json
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from nsabench.evidence.manifest import verify
from nsabench.model.vocabulary import Status
from nsabench.verdicts.tables import read_records
from tests import forked

triton = pytest.importorskip("triton")

OLDEST = "3.0.1"  # no Triton has this version
MATRIX = """
op: selection_rows
axes: {N: 4, H: 1, D: 32, L: 16}
implementations: {only: [sdpa_gqa, particular]}
timing: {warmup_s: 0.005, stopping: {kind: fixed_count, rounds: 5}}
"""
KERNELS = """
import triton
from nsabench import implementation

@implementation(op="selection_rows", name="particular", role="candidate", devices=("cpu",))
def particular(q, k, v, *, sm_scale):
    if triton.__version__ != "3.0.1":
        raise NotImplementedError("a later Triton")
    # In float32: with scores in float16 it was now and then as wrong as that format makes it.
    weights = ((q.float() @ k.float().transpose(-1, -2)) * sm_scale).softmax(-1)
    return (weights @ v.float()).to(v.dtype)
"""


def install_as(folder, version):
    """Install the installed Triton as this version, as `pip install --target` does."""
    there, package = Path(triton.__file__).parent, folder / version / "triton"
    package.mkdir(parents=True)
    for path in there.iterdir():
        if path.name not in ("__init__.py", "__pycache__"):
            (package / path.name).symlink_to(path)
    text = (there / "__init__.py").read_text()
    named = re.sub(r"^__version__ = .*$", f"__version__ = '{version}'", text, flags=re.MULTILINE)
    assert named != text
    (package / "__init__.py").write_text(named)
    info = folder / version / f"triton-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n")


def nsabench(*words):
    return subprocess.run(
        [forked.shim(), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.timeout(600)
def test_each_version_has_a_signed_run_and_they_are_compared(tmp_path):
    matrix, kernels, out = tmp_path / "tiny.yaml", tmp_path / "own.py", tmp_path / "runs"
    matrix.write_text(MATRIX)
    kernels.write_text(KERNELS)
    tritons = tmp_path / "tritons"
    install_as(tritons, OLDEST)
    newest = metadata.version("triton")
    words = ["versions", matrix, "--device", "cpu", "--kernels", kernels, "--tritons", tritons]
    done = nsabench(*words, "--triton", f"{newest},{OLDEST}", "--out", out)
    assert done.returncode == 1, done.stdout + done.stderr  # `particular` fails in one run
    assert f"Triton {OLDEST} (unpaired: this torch belongs with {newest}): exit" in done.stdout
    runs = {version: out / f"triton-{version}" for version in (OLDEST, newest)}
    statuses = {
        version: {r.status for r in read_records(run) if r.implementation == "particular"}
        for version, run in runs.items()
    }
    assert statuses == {OLDEST: {Status.OK}, newest: {Status.CRASHED}}
    assert {r.triton for r in read_records(runs[OLDEST])} == {OLDEST}
    assert "particular" in (out / "comparison.md").read_text()
    data = json.loads((out / "comparison.json").read_text())
    assert [run["versions"]["triton"] for run in data["runs"]] == [OLDEST, newest]
    again = nsabench(*words, "--triton", f"{newest},{OLDEST}", "--out", out)
    assert again.stdout.count("already measured") == 2, again.stdout + again.stderr
    for run in runs.values():
        assert verify(run).broken is None
