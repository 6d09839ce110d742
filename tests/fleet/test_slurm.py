"""A fleet on a real Slurm: what befalls its tasks costs time, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsabench.assessment.tables import read_records
from nsabench.evidence.manifest import verify
from nsabench.execution.journal import lines, read
from nsabench.fleet.folder import FleetFolder
from nsabench.fleet.status import Progress, Stage, of_fleet
from nsabench.model.journal import Begun
from nsabench.model.plan import PlannedCase
from nsabench.planning import resolve
from nsabench.planning.shards import share
from tests import forked
from tests.fleet.cluster import Cluster, lacking, wait

pytestmark = [
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
    pytest.mark.timeout(600),
]
COUNT = 5
NAMES = ("sdpa_gqa", "bmm_softmax", "unhurried")
MATRIX = f"""
op: selection_rows
axes: {{N: 4, H: [1, 2, 3, 4, 5], D: 32, L: [8, 16, 32, 64]}}
implementations: {{only: [{", ".join(NAMES)}]}}
timing:
  warmup_s: 0.005
  stopping: {{kind: fixed_count, rounds: 5}}
"""
# Slurm looks every half a minute whose time is nearly up: one shard must take longer than that
# behind its first case, and none has to once it is queued again.
KERNELS = """
import os
import time
from nsabench import implementation

@implementation(op="selection_rows", name="unhurried", role="candidate", devices=("cpu",))
def unhurried(q, k, v, *, sm_scale):
    is_first = not int(os.environ.get("SLURM_RESTART_COUNT", 0))
    if is_first and q.shape[1] == {heads} and k.shape[1] > 8:
        time.sleep(0.8)
    # In float32: with scores in float16 it was now and then as wrong as that format makes it.
    weights = ((q.float() @ k.float().transpose(-1, -2)) * sm_scale).softmax(-1)
    return (weights @ v.float()).to(v.dtype)
"""
FAILED_NODE, CANCELLED, REQUEUED, LATE, FULL = range(1, COUNT + 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:
        made = Cluster(Path(folder), tuple(f"node{n}" for n in range(COUNT)))
        try:
            made.start()
            yield made
        finally:
            made.stop()


def nsabench(cluster: Cluster, *words: str) -> str:
    """What a command prints."""
    done = forked.run(words, Path.cwd(), {**os.environ, **cluster.variables}, 120)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def make(cluster: Cluster, folder: Path, *words: str, late: int = 0) -> FleetFolder:
    """late: the shard that takes long."""
    matrix = folder.with_suffix(".yaml")
    matrix.write_text(MATRIX)
    kernels = folder.with_suffix(".py")
    kernels.write_text(KERNELS.format(heads=_heads_of(late, matrix) if late else 0))
    words = ("--kernels", str(kernels), *words)
    where = ("--shards", str(COUNT), "--out", str(folder), "--cpus", "1", "--memory", "500M")
    nsabench(cluster, "fleet", "slurm", str(matrix), "--device", "cpu", *where, *words)
    matrix.write_text("what is written here later is not what is measured")
    return FleetFolder(folder)


def _heads_of(number: int, matrix: Path) -> int:
    """Of the cases that a shard has."""
    cases = [case for loaded in resolve.load_matrices([str(matrix)]) for case in loaded.cases]
    planned = [PlannedCase(id=case.id, case=case, implementations=NAMES) for case in cases]
    return share(planned, f"{number}/{COUNT}")[0].case.shape["H"]


def merged(fleet: FleetFolder) -> bool:
    return (fleet.whole / "manifest.dsse.json").is_file()


def cells(fleet: FleetFolder) -> set[tuple[str, str]]:
    return {record.key for record in read_records(fleet.whole)}


def shard(fleet: FleetFolder, number: int) -> Progress:
    return of_fleet(fleet, {})[number - 1]


def said(fleet: FleetFolder) -> str:
    return "".join(log.read_text() for log in sorted(fleet.logs.iterdir()))


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> FleetFolder:
    fleet = make(cluster, tmp_path_factory.mktemp("fleet") / "undisturbed", "--submit")
    try:
        wait(lambda: merged(fleet), 150, "the merged run")
    except TimeoutError:
        print(said(fleet))
        raise
    return fleet


def test_a_fleet_is_measured_and_merged(cluster: Cluster, undisturbed: FleetFolder) -> None:
    assert verify(undisturbed.whole).broken is None
    assert len({case for case, _ in cells(undisturbed)}) == 20
    shown = json.loads(nsabench(cluster, "fleet", "status", str(undisturbed.path), "--json"))
    assert shown["merged"] and {s["stage"] for s in shown["shards"]} == {"whole"}
    assert {s["host"] for s in shown["shards"]} == set(cluster.nodes)
    assert "merged before" in nsabench(cluster, "fleet", "collect", str(undisturbed.path))


def test_what_befalls_its_tasks_is_not_seen_in_the_run(
    cluster: Cluster, undisturbed: FleetFolder, tmp_path: Path
) -> None:
    fleet = make(cluster, tmp_path / "disturbed", "--warn", "58", "--time", "10", late=LATE)
    disk = fleet.shard(FULL)
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=300m", "none", str(disk)]
    if subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here, so that no disk can be full")
    try:
        _befall(cluster, fleet)
        assert cells(fleet) == cells(undisturbed)
        assert verify(fleet.whole).broken is None
    except BaseException:
        print(said(fleet))
        print(cluster.ask("squeue", "-r"), cluster.ask("sinfo", "-N", "-o", "%N %T %E"))
        print((cluster.folder / "log" / "slurmctld").read_text())
        raise
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _befall_one(
    cluster: Cluster, fleet: FleetFolder, number: int, task: str, lost: list[str]
) -> None:
    if number == FULL:
        other = fleet.shard(FULL) / "other"
        subprocess.run(["dd", "if=/dev/zero", f"of={other}", "bs=1M"], capture_output=True)
    elif number == FAILED_NODE:
        lost.append(shard(fleet, number).host)
        cluster.down(lost[0])
    elif number == CANCELLED:
        cluster.ask("scancel", task)
    elif number == REQUEUED:
        cluster.ask("scontrol", "requeue", task)
    else:
        cluster.ask("scontrol", "update", f"jobid={task}", "timelimit=1")


def _befall(cluster: Cluster, fleet: FleetFolder) -> None:
    nsabench(cluster, "fleet", "submit", str(fleet.path))
    array, merging = fleet.jobs.read_text().split()
    before: dict[int, bytes] = {}
    lost: list[str] = []
    waiting = {FULL, FAILED_NODE, CANCELLED, REQUEUED, LATE}

    def befallen() -> bool:
        for number in [n for n in sorted(waiting) if shard(fleet, n).measured > 0]:
            waiting.remove(number)
            _befall_one(cluster, fleet, number, f"{array}_{number}", lost)
            written = lines(fleet.shard(number) / "journal.jsonl")
            # What is begun gives way to the next line.
            before[number] = b"".join(
                text + b"\n" for text, line in written if not isinstance(line, Begun)
            )
        return not waiting

    wait(befallen, 240, "a case of each shard")

    def through() -> bool:
        cluster.hasten()
        state = cluster.ask("squeue", "-h", "-r", "-j", array, "-o", "%i %T")
        if f"{array}_{LATE} PENDING" in state:
            cluster.ask("scontrol", "update", f"jobid={array}_{LATE}", "timelimit=10")
        stages = {number: shard(fleet, number) for number in range(1, COUNT + 1)}
        return (
            all(stages[n].stage is Stage.WHOLE for n in (FAILED_NODE, REQUEUED, LATE))
            and stages[FULL].stage is Stage.REFUSED
            and merging not in cluster.ask("squeue", "-h", "-o", "%A").split()
        )

    # Each look asks Slurm, and reads what all shards have journaled.
    wait(through, 300, "shards that were requeued", look_s=1.5)
    cluster.up(lost.pop())
    assert shard(fleet, CANCELLED).stage is Stage.STOPPED
    assert shard(fleet, FULL).code == 3
    assert "No space left on device" in (fleet.logs / f"shard-{FULL}.log").read_text()
    assert "shards are not whole: 2, 5" in (fleet.logs / "merge.log").read_text()
    assert "queued again" in (fleet.logs / f"shard-{LATE}.log").read_text()
    (fleet.shard(FULL) / "other").unlink()
    nsabench(cluster, "fleet", "submit", str(fleet.path))
    wait(lambda: merged(fleet), 240, "the merged run")
    for number, journaled in before.items():
        journal = fleet.shard(number) / "journal.jsonl"
        assert journal.read_bytes().startswith(journaled), number
        contents = read(journal)
        looked = [(entry.pass_name, entry.case_id) for entry in contents.entries]
        assert len(set(looked)) == len(looked), number
        assert len(contents.sittings) > 1, number
