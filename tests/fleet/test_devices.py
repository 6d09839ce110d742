"""A shard at each place of a host, all at once, and one run out of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nsabench.assessment.tables import read_records
from nsabench.cli._devices import measure_at
from nsabench.cli._options import Measuring
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.evidence.manifest import verify
from nsabench.execution.journal import read
from nsabench.execution.neighbours import VARIABLE, Neighbours
from nsabench.fleet import devices
from nsabench.fleet.devices import Place, _start, begun, measure, places
from nsabench.machine.environment import nvml
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import MARGIN, PassName, Status, Verdict

TINY = """
op: selection_rows
axes: {N: 4, H: [1, 2], D: 32, L: [8, 2048]}
implementations: {only: [sdpa_gqa, bmm_softmax]}
timing:
  warmup_s: 0.005
  stopping: {kind: fixed_count, rounds: 5}
"""
ONE_CPU = frozenset({min(os.sched_getaffinity(0))})
BOTH = [Place("first", {"NSABENCH_TEST_PLACE": "1"}, ONE_CPU), Place("second", {}, ONE_CPU)]


def asked(matrix: Path, out: Path) -> Measuring:
    return Measuring(
        matrices=(str(matrix),),
        device="cpu",
        quick=False,
        out=out,
        resume=None,
        kernels=None,
        ops_file=None,
        shard="1/1",
        balance=(),
        margin=MARGIN,
        where=("D=32",),
        only=(),
        tag="",
        no_sandbox=False,
        verbose=False,
        as_json=False,
        junit=None,
    )


def test_two_shards_at_once_make_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both have one CPU: each has it to itself while the other waits, and half of it while both
    measure. What a second command finds measured, it leaves as it is, and merges."""
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    out, shards = tmp_path / "whole", tmp_path / "whole.shards"
    # Controls of the host's clock may go uncaught where others use the CPU.
    assert measure_at(asked(matrix, out), BOTH) in (0, 1)
    report = verify(out)
    assert report.broken is None
    plan = Plan.read(out / "plan.yaml")
    assert len(plan.cases) == 4 and len(plan.shards) == 2 and plan.where == ("D=32",)
    said = capsys.readouterr().out
    assert "[first] " in said and "[second] " in said
    # By how much one CPU slows two depends on what else it does; test_neighbours has the rule.
    apart = "beside a busy neighbour: over 3% apart" in said
    journals = [read(shards / f"{number}/journal.jsonl") for number in (1, 2)]
    sittings = [contents.sittings[0] for contents in journals]
    assert abs((sittings[0].started - sittings[1].started).total_seconds()) < 20
    for contents in journals:
        [alone], [together] = contents.of(PassName.ALONE), contents.of(PassName.TOGETHER)
        assert len(contents.headers) == 1
        assert {o.status for e in (alone, together) for o in e.outcomes} == {Status.OK}
    judged = {r.verdict for r in read_records(out) if r.verdict is not None}
    assert not apart or judged <= {Verdict.INCONCLUSIVE, Verdict.INVALID}
    shutil.rmtree(out)
    measure_at(asked(matrix, out), BOTH)
    assert "going on with the 2 shards" in capsys.readouterr().out
    assert [read(shards / f"{n}/journal.jsonl").sittings for n in (1, 2)] == [
        contents.sittings for contents in journals
    ]


def test_what_goes_on_is_what_was_begun(tmp_path: Path) -> None:
    folder = tmp_path / "whole.shards"
    assert not begun(folder, ["a.yaml"], BOTH)
    assert begun(folder, ["a.yaml"], BOTH)
    with pytest.raises(UsageError, match=r"shards of other arguments than .*: a\.yaml"):
        begun(folder, ["b.yaml"], BOTH)
    with pytest.raises(UsageError, match=r"shards of other places than .*: first second"):
        begun(folder, ["a.yaml"], BOTH[:1])
    (folder / "asked.json").unlink()
    with pytest.raises(UsageError, match="does not say what was asked for"):
        begun(folder, ["a.yaml"], BOTH)


def test_beside_a_shard_that_is_signed_it_is_not_measured_what_the_devices_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is idle: what another did there alone would be said to be beside a busy one."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "manifest.dsse.json").write_text("{}")
    started: list[tuple[Mapping[str, str], tuple[int, ...]]] = []

    def start(
        words: Sequence[str], place: Place, variables: Mapping[str, str], *inherited: int
    ) -> subprocess.Popen[str]:
        started.append((variables, inherited))
        return subprocess.Popen(["true"], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(devices, "_start", start)
    measure(["tiny.yaml"], BOTH, tmp_path, lambda *_: None)
    [(variables, inherited)] = started
    assert inherited == ()
    monkeypatch.setitem(os.environ, VARIABLE, variables[VARIABLE])
    handed = Neighbours.handed()
    assert handed.count == 1 and not handed.can_be_asked, "its plan is that of the other shards"


def test_a_shard_that_does_not_come_to_its_end_is_named(tmp_path: Path) -> None:
    lines: list[tuple[str, str]] = []
    with pytest.raises(EnvironmentRefused, match="the shard on first ended with exit code 2"):
        measure(["none.yaml"], BOTH, tmp_path / "s", lambda *line: lines.append(line))
    assert any("there is no matrix" in line for _, line in lines)


def test_a_shard_runs_on_the_cpus_of_its_place(tmp_path: Path) -> None:
    [cpu, *_] = os.sched_getaffinity(0)
    place = Place("near", {}, frozenset({cpu}))
    process = _start(["none.yaml"], place)
    try:
        assert os.sched_getaffinity(process.pid) == {cpu}
    finally:
        process.communicate()


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="a kernel without NUMA")
def test_a_shard_takes_memory_of_the_nodes_of_its_place() -> None:
    process = _start(["none.yaml"], Place("near", {}, nodes=frozenset({0})))
    try:
        maps = Path(f"/proc/{process.pid}/numa_maps").read_text().splitlines()
        assert {line.split()[1] for line in maps} == {"prefer:0"}
    finally:
        process.communicate()


def test_cpus_and_memory_of_a_node_are_read_from_their_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def affinity(handle: object, words: int) -> list[int]:
        asked.append(words)
        return [1 << 0 | 1 << 63, 1 << 2]

    monkeypatch.setattr(nvml.os, "cpu_count", lambda: 96)
    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetCpuAffinity", affinity)
    assert nvml.Device(None).cpus() == {0, 63, 66} and asked == [2]
    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetMemoryAffinity", lambda *_: [1 << 1, 0])
    assert nvml.Device(None).memory_nodes() == {1}


@pytest.mark.skipif(nvml.initialised(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_is_refused() -> None:
    with pytest.raises(EnvironmentRefused, match="needs GPUs, and this machine shows none") as no:
        places("all")
    assert "nsabench doctor" in no.value.remedy
