"""A shard at each place of a host, all at once, and one run out of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsabench.cli._devices import measure_at
from nsabench.cli._options import Measuring
from nsabench.errors import EnvironmentRefused
from nsabench.evidence.manifest import verify
from nsabench.execution.journal import read
from nsabench.fleet.devices import Place, _start, measure, places
from nsabench.machine.environment import nvml
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import MARGIN

TINY = """
op: selection_rows
axes: {N: 4, H: [1, 2], D: 32, L: [8, 16]}
implementations: {only: [sdpa_gqa, bmm_softmax]}
timing:
  warmup_s: 0.005
  stopping: {kind: fixed_count, rounds: 5}
"""
BOTH = [Place("first", {"NSABENCH_TEST_PLACE": "1"}), Place("second", {})]


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
        balance=None,
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
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    out = tmp_path / "whole"
    # Controls of the host's clock may go uncaught where others use the CPU.
    assert measure_at(asked(matrix, out), BOTH) in (0, 1)
    report = verify(out)
    assert report.broken is None
    plan = Plan.read(out / "plan.yaml")
    assert len(plan.cases) == 4 and len(plan.shards) == 2 and plan.where == ("D=32",)
    said = capsys.readouterr().out
    assert "[first] " in said and "[second] " in said
    sittings = [read(tmp_path / f"whole.shards/{i}/journal.jsonl").sittings[0] for i in (1, 2)]
    assert abs((sittings[0].started - sittings[1].started).total_seconds()) < 20


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


def test_cpus_of_a_node_are_read_from_its_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def affinity(handle: object, words: int) -> list[int]:
        asked.append(words)
        return [1 << 0 | 1 << 63, 1 << 2]

    monkeypatch.setattr(nvml.os, "cpu_count", lambda: 96)
    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetCpuAffinity", affinity)
    assert nvml.Device(None).cpus() == {0, 63, 66} and asked == [2]


@pytest.mark.skipif(nvml.initialised(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_is_refused() -> None:
    with pytest.raises(EnvironmentRefused, match="needs GPUs, and this machine shows none") as no:
        places("all")
    assert "nsabench doctor" in no.value.remedy
