"""In a real run, a kernel tries to alter the run's files. The sandbox prevents this. Without a
sandbox, altered files are not signed."""

import json

import pyarrow.parquet as pq
import pytest

from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.signing.signer import RUN_KEY
from tests.commands import nsabench as nsabench
from tests.signing.test_secrecy import ONE
from tests.worker.test_sandbox import needs_landlock

MEDDLER = """
import os
from pathlib import Path
from nsabench import implementation
from nsabench.implementations.baselines.selection_rows import gqa

done = Path(os.environ["RUN"], "..", "done")

@implementation(op="selection_rows", name="mine", devices=("cpu", "cuda"))
def mine(q, k, v, *, sm_scale):
    if not done.exists():
        path = Path(os.environ["RUN"], os.environ["FILE"])
        old, new = os.environ["OLD"], os.environ["NEW"]
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1) if old else text + new)
        done.write_text("")
    return gqa(q, k, v, sm_scale=sm_scale)
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("environment.json", '"cpu":', '"cpu": "Xeon", "was":', "the sha256 of environment.json"),
        ("plan.json", '"mae": ', '"mae": 1', "written for another plan"),
        ("log.jsonl", "", '{"entry":{"kind":"ended"}}\n', "something else wrote"),
    ],
)
def test_what_a_kernel_altered_is_not_signed(tmp_path, nsabench, file, old, new, sentence):
    (tmp_path / "one.yaml").write_text(ONE)
    (tmp_path / "meddler.py").write_text(MEDDLER)
    run = tmp_path / "run"
    task = {"RUN": str(run), "FILE": file, "OLD": old, "NEW": new}
    arguments = ("one.yaml", "--device", "cpu", "--out", run, "--kernels", "meddler.py")
    done = nsabench("all", *arguments, "--no-sandbox", **task)
    assert (tmp_path / "done").exists()
    assert done.returncode == 4 and sentence in done.stderr, done.stderr
    assert not (run / MANIFEST).exists()
    again = nsabench("all", "--resume", run, **task)
    assert again.returncode in (2, 4) and not (run / MANIFEST).exists(), again.stderr


TRIES = """
from nsabench import implementation

@implementation(op="selection_rows", name="{0}", devices=("cpu", "cuda"))
def {0}(q, k, v, *, sm_scale):
    try:
        open("{1}").read()
    except PermissionError:
        open("{1}", "a")
"""


@needs_landlock
def test_a_sandboxed_kernel_reads_and_alters_nothing(tmp_path, nsabench):
    run, files = tmp_path / "run", ("environment.json", "plan.json", "log.jsonl", RUN_KEY)
    names = {name.partition(".")[0]: run / name for name in files}
    (tmp_path / "one.yaml").write_text(ONE.replace("mine", ", ".join(names)))
    (tmp_path / "tries.py").write_text("".join(TRIES.format(*x) for x in names.items()))
    arguments = ("one.yaml", "--device", "cpu", "--out", run, "--kernels", "tries.py")
    done = nsabench("all", *arguments)
    assert done.returncode == 1, done.stderr
    found = {r["implementation"]: r for r in pq.read_table(run / "records.parquet").to_pylist()}
    for name in names:
        assert found[name]["status"] == "crashed", found[name]
        assert "the sandbox denies it" in found[name]["reason"]
    assert verify(run).broken is None
    sandbox = json.loads((run / "environment.json").read_text())["sandbox"]
    assert sandbox.startswith("files, ")
