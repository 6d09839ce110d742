"""The job files for Slurm, run by a real Slurm: tasks are requeued, warned and cancelled."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from nsabench.evidence.manifest import verify
from nsabench.model.plan import Plan
from nsabench.running.log import read
from nsabench.verdicts.tables import read_records
from tests.commands import invoke
from tests.fleet.cluster import Cluster, wait

pytestmark = pytest.mark.timeout(600)
MATRIX = """
op: selection_rows
axes: {N: 4, H: [1, 2, 3], D: 32, L: [8, 16, 32, 64]}
implementations: {only: [sdpa_gqa, bmm_softmax, unhurried]}
timing: {warmup_s: 0.005, stopping: {kind: fixed_count, rounds: 5}}
"""
KERNELS = """
import time
from nsabench import implementation

@implementation(op="selection_rows", name="unhurried", role="candidate", devices=("cpu",))
def unhurried(q, k, v, *, sm_scale):
    if k.shape[1] > 8:
        time.sleep(0.1)
    weights = ((q.float() @ k.float().transpose(-1, -2)) * sm_scale).softmax(-1)
    return (weights @ v.float()).to(v.dtype)
"""
REQUEUED, WARNED, CANCELLED = 1, 2, 3


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:
        made = Cluster(Path(folder), ("node1", "node2", "node3"))
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture
def fleet(tmp_path):
    (tmp_path / "tiny.yaml").write_text(MATRIX)
    (tmp_path / "mine.py").write_text(KERNELS)
    words = [*("--kernels", tmp_path / "mine.py"), *("--device", "cpu", "--shards", 3)]
    words += ["--memory", "500M", "--sbatch=--cpus-per-task=1", "--out", tmp_path / "rows"]
    assert invoke("fleet", "slurm", tmp_path / "tiny.yaml", *words).returncode == 0
    return tmp_path / "rows"


def measured(fleet, shard):
    """Return the pass and the case of each attempt of a shard that has an answer."""
    log = fleet / f"shards/{shard}/log.jsonl"
    attempts = read(log).attempts if log.exists() else []
    return [f"{a.job.purpose} {a.job.case.id}" for a in attempts if a.has_answer]


def submit(cluster, fleet):
    words = ["bash", str(fleet / "submit.sh")]
    subprocess.run(words, env={**os.environ, **cluster.variables}, check=True)


def test_interrupted_tasks_continue_and_the_shards_are_merged(cluster, fleet):
    submit(cluster, fleet)
    before = {}
    disturb = {
        REQUEUED: ("scontrol", "requeue"),
        WARNED: ("scancel", "--signal=TERM"),  # as Slurm does before the time is up
        CANCELLED: ("scancel",),
    }

    def disturbed():
        for shard in disturb.keys() - before.keys():
            if found := measured(fleet, shard):
                before[shard] = found
                array = cluster.ask("squeue", "-h", "-o", "%F", "-n", "nsabench-rows").split()[0]
                cluster.ask(*disturb[shard], f"{array}_{shard}")
        return before.keys() == disturb.keys()

    def ended():
        cluster.hasten()
        return not cluster.ask("squeue", "-h", "-r").strip()

    try:
        wait(disturbed, 240, "a case of each shard")
        wait(ended, 240, "the end of all jobs", look_s=1)
        assert not (fleet / "whole").exists()
        assert "shards/" in (fleet / "logs/merge.log").read_text()
        submit(cluster, fleet)
        wait(ended, 240, "the end of all jobs", look_s=1)
        assert verify(fleet / "whole").broken is None
    except BaseException:
        print("".join(log.read_text() for log in sorted((fleet / "logs").iterdir())))
        raise
    assert len({record.case_id for record in read_records(fleet / "whole")}) == 12
    assert len(Plan.read(fleet / "whole/plan.json").shards) == 3
    for shard, found in before.items():
        after = measured(fleet, shard)
        assert after[: len(found)] == found and len(set(after)) == len(after)
        assert len(read(fleet / f"shards/{shard}/log.jsonl").sessions) == 2
