"""One shard of a fleet: begun, gone on with, left as it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from nsabench.cli.fleet import command
from nsabench.errors import UsageError
from nsabench.fleet.folder import FleetFolder
from nsabench.fleet.status import Stage, of_fleet
from nsabench.fleet.task import ELSEWHERE, is_begun, is_signed, measure
from tests import forked
from tests.fleet.cluster import wait
from tests.fleet.test_devices import TINY


@pytest.fixture
def fleet(tmp_path: Path) -> FleetFolder:
    """Two shards, of which nothing is measured."""
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    out = tmp_path / "fleet"
    words = ["slurm", str(matrix), "--device", "cpu", "--shards", "2", "--out", str(out)]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    return FleetFolder(out)


def stages(fleet: FleetFolder) -> list[Stage]:
    return [shard.stage for shard in of_fleet(fleet, {})]


def test_the_files_of_a_fleet_are_those_it_was_made_with(fleet: FleetFolder) -> None:
    spec = fleet.read()
    assert spec.shards == 2 and "input/tiny.yaml" in spec.arguments
    assert str(fleet.path / "input" / "tiny.yaml") in fleet.arguments(spec)
    assert (fleet.path / "input" / "tiny.yaml").read_text() == TINY
    assert stages(fleet) == [Stage.WAITING] * 2
    script = (fleet.path / "shard.sh").read_text()
    assert "#SBATCH --array=1-2" in script and "@" not in script.replace("USR1@", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shards", "3"], "3 shards are too many: the cases make 2 ladders"),
        (["--shards", "2", "--engine", "docker"], "docker needs an image"),
        (["--shards", "2", "--out", "with space"], "characters in its name"),
        (["--shards", "2", "--work", "/var/with space"], "characters in its name"),
        (["--shards", "2", "--work", "var/tmp"], "--work var/tmp is a relative path"),
        (["--shards", "2", "--s3-env", "s3.env"], "--s3-env s3.env is a relative path"),
        (["--shards", "2", "--where", "L>4", "--quick"], "--quick names a matrix by itself"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    out = [] if "--out" in words else ["--out", str(tmp_path / "fleet")]
    words = [str(tmp_path / w) if w == "with space" else w for w in words]
    done = CliRunner().invoke(command, ["slurm", str(matrix), "--device", "cpu", *words, *out])
    assert isinstance(done.exception, UsageError) and said in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("engine", ["venv", "apptainer", "pyxis", "docker"])
def test_the_scripts_are_shell(tmp_path: Path, engine: str) -> None:
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    words = ["--shards", "2", "--engine", engine, "--image", "nsabench:cpu", "--key-file", "/k/key"]
    out = tmp_path / engine
    done = CliRunner().invoke(command, ["slurm", str(matrix), *words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    for name in ("shard.sh", "merge.sh"):
        script = out / name
        subprocess.run(["bash", "-n", script], check=True)
        assert "NSABENCH_SIGNING_KEY_FILE=/k/key" in script.read_text()
        assert str(out) in script.read_text()


@pytest.mark.parametrize("engine", ["apptainer", "docker"])
def test_in_a_container_it_is_told_where_the_key_is(tmp_path: Path, engine: str) -> None:
    """`apptainer exec --containall` hands on no variable that it is not told to."""
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    words = ["--shards", "2", "--engine", engine, "--image", "nsabench:cpu"]
    words += ["--key-file", "/k of mine/key", "--out", str(tmp_path / engine)]
    done = CliRunner().invoke(command, ["slurm", str(matrix), *words])
    assert done.exit_code == 0, done.output
    script = (tmp_path / engine / "shard.sh").read_text()
    lines = script.splitlines()
    exports = [line for line in lines if line.startswith("export NSABENCH_")]
    [start] = [line.removesuffix("&") for line in lines if " fleet measure " in line]
    of_slurm = "SLURMD_NODENAME=n1 SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=2 SLURM_JOB_GPUS=0"
    shown = f"{engine}() {{ printf '%s\\n' \"$@\"; }}"
    text = "\n".join([f"export {of_slurm}", *exports, shown, start])
    said = subprocess.run(["bash", "-uc", text], capture_output=True, text=True)
    assert not said.stderr
    given = said.stdout.splitlines()
    told = [word for at, word in enumerate(given) if at and given[at - 1] == "--env"]
    key = {"apptainer": "NSABENCH_SIGNING_KEY_FILE=/k of mine/key"}
    assert key.get(engine, "NSABENCH_SIGNING_KEY_FILE") in told
    assert {"apptainer": "SLURMD_NODENAME=n1"}.get(engine, "SLURMD_NODENAME") in told
    # What is not set stays so.
    assert engine == "docker" or not [t for t in told if "PASSPHRASE" in t]


@pytest.mark.parametrize("engine", ["venv", "apptainer", "pyxis", "docker"])
def test_without_a_shared_folder_the_script_brings_what_is_measured(
    tmp_path: Path, engine: str
) -> None:
    matrix, out, work = tmp_path / "tiny.yaml", tmp_path / engine, tmp_path / "work"
    matrix.write_text(TINY)
    words = ["--shards", "2", "--engine", engine, "--image", "nsabench:cpu", "--out", str(out)]
    words += ["--results", "s3://bench/fleet", "--s3-env", "/k/s3 env", "--work", str(work)]
    done = CliRunner().invoke(command, ["slurm", str(matrix), *words])
    assert done.exit_code == 0, done.output
    assert not (out / "merge.sh").exists()
    text = (out / "shard.sh").read_text()
    assert f"#SBATCH --output={work}/nsabench-{engine}-" in text
    [start] = [line for line in text.splitlines() if " fleet measure " in line]
    assert engine != "docker" or "--network host --env-file '/k/s3 env'" in start
    assert engine != "apptainer" or "--env-file '/k/s3 env'" in start
    assert ". '/k/s3 env' || exit 3" in text
    assert "\nexport NSABENCH_S3_ENV_FILE='/k/s3 env'\n" in text
    assert engine != "docker" or "--env NSABENCH_S3_ENV_FILE " in start
    # A container is shown the folder of its shard, and not those of others beside it.
    shown = {
        "venv": "fleet measure",
        "apptainer": f"--bind {work}/nsabench-{engine}-",
        "pyxis": f"--container-mounts={work}/nsabench-{engine}-",
        "docker": f"--volume {work}/nsabench-{engine}-",
    }[engine]
    words = subprocess.run(
        [
            "bash",
            "-c",
            f'fleet="$1"; echo {start.removesuffix("&")}',
            "-",
            f"{work}/nsabench-{engine}-x-2",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown in words and f"{work}:" not in words and f"--bind {work} " not in words
    asked = text.replace(
        start, 'cat "$fleet/fleet.yaml" "$fleet/input/tiny.yaml" && stat -c %a "$fleet" &'
    )
    asked = asked.replace(". '/k/s3 env'", "true")
    script = tmp_path / "asked.sh"
    script.write_text(asked)
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURMD_NODENAME": "node"}
    ran = subprocess.run(
        ["bash", str(script)], env={**os.environ, **task}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert (out / "fleet.yaml").read_text() + TINY + "700\n" in ran.stdout
    assert not list(work.iterdir())  # nothing stays of a shard that is whole


def begin(fleet: FleetFolder, number: int, **variables: str) -> subprocess.Popen[bytes]:
    words = [forked.shim(), "fleet", "measure", str(fleet.path), str(number)]
    return subprocess.Popen(words, env={**os.environ, **variables})


def test_a_shard_that_is_stopped_goes_on_and_is_then_left_as_it_is(fleet: FleetFolder) -> None:
    task = begin(fleet, 1, SLURMD_NODENAME="node1")
    wait(lambda: of_fleet(fleet, {})[0].measured > 0, 120, "a case")
    assert stages(fleet)[0] is Stage.MEASURING
    task.send_signal(signal.SIGTERM)
    assert task.wait(60) == 130
    assert stages(fleet)[0] is Stage.STOPPED
    journaled = (fleet.shard(1) / "journal.jsonl").read_bytes()
    assert begin(fleet, 1).wait(120) in (0, 1)
    assert (fleet.shard(1) / "journal.jsonl").read_bytes().startswith(journaled)
    assert stages(fleet)[0] is Stage.WHOLE
    manifest = (fleet.shard(1) / "manifest.dsse.json").read_bytes()
    assert measure(fleet, 1) in (0, 1)
    assert (fleet.shard(1) / "manifest.dsse.json").read_bytes() == manifest
    with pytest.raises(UsageError, match="has no shard 3"):
        measure(fleet, 3)


def test_a_task_that_is_killed_leaves_nobody_behind(fleet: FleetFolder) -> None:
    task = begin(fleet, 1)
    wait(lambda: is_begun(fleet.shard(1)), 120, "the ceilings")
    task.kill()
    task.wait()
    wait(lambda: stages(fleet)[0] is not Stage.MEASURING, 60, "the end of the run")
    assert not is_signed(fleet.shard(1))


def test_a_shard_does_not_go_on_at_another_machine(fleet: FleetFolder, tmp_path: Path) -> None:
    task = begin(fleet, 1, SLURMD_NODENAME="node1")
    wait(lambda: is_begun(fleet.shard(1)), 120, "the ceilings")
    task.send_signal(signal.SIGTERM)
    task.wait(60)
    journaled = (fleet.shard(1) / "journal.jsonl").read_bytes()
    other = tmp_path / "machine-id"
    other.write_text("0123456789abcdef0123456789abcdef\n")
    again = [sys.executable, "-m", "nsabench", "fleet", "measure", str(fleet.path), "1"]
    bind = f"mount --bind {other} /etc/machine-id && exec " + " ".join(again)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", bind],
        env={**os.environ, "SLURMD_NODENAME": "node2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no other machine can be played here: {done.stderr.strip()}")
    assert done.returncode == ELSEWHERE, done.stderr
    assert "begun on another machine" in done.stderr
    assert (fleet.shard(1) / "journal.jsonl").read_bytes() == journaled
    shown = CliRunner().invoke(command, ["status", str(fleet.path), "--json"])
    [first, _] = json.loads(shown.stdout)["shards"]
    assert (first["stage"], first["host"]) == ("stopped", "node1")


@pytest.fixture
def small_disk(fleet: FleetFolder) -> Iterator[Path]:
    """The place of shard 1, on a disk with too little room for a run."""
    disk = fleet.shard(1)
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk]).returncode:
        pytest.skip("no file system can be mounted here, so that no disk can be full")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_disk_that_is_full_is_refused_and_then_used(fleet: FleetFolder, small_disk: Path) -> None:
    assert begin(fleet, 1).wait(120) == 3
    assert stages(fleet)[0] is Stage.REFUSED
    assert not list(small_disk.iterdir())
    subprocess.run(["mount", "-o", "remount,size=400m", small_disk], check=True)
    assert begin(fleet, 1).wait(120) in (0, 1)
    assert stages(fleet)[0] is Stage.WHOLE
