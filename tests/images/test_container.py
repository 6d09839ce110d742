"""The image of the CPU combo, built and run for real; `.ci/run` provides daemon and base."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from nsabench.errors import NsabenchError
from nsabench.images import build as building
from nsabench.images import combos, context, daemon, launch, lock, provenance, settled
from nsabench.images.revision import revision
from tests.attacks import elsewhere

BASE = os.environ.get("NSABENCH_TEST_BASE", "")
OWNER = "1000:1000"
CHECKOUT = combos.checkout()
TINY = """
op: selection_rows
axes: {N: 4, H: 2, D: 32, L: [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96]}
implementations: {only: [sdpa_gqa, bmm_softmax, rows_group]}
timing: {stopping: {kind: fixed_count, rounds: 5}}
"""

pytestmark = [
    pytest.mark.skipif(not BASE, reason="NSABENCH_TEST_BASE names no base image: images untested"),
    pytest.mark.timeout(900, func_only=True),  # the image is built in a fixture
]

Popen = subprocess.Popen[str]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "nsabench", *map(str, arguments)]


def nsabench(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=840)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpu") / "wheels"
    fetched = nsabench("images", "wheelhouse", "cpu", "--folder", folder)
    assert fetched.returncode == 0, fetched.stderr
    return folder


@pytest.fixture(scope="module")
def built(wheels: Path) -> tuple[str, str]:
    """The image's id, and the revision that it was built from."""
    sources = revision(CHECKOUT.root)
    evidence = ["--evidence", wheels.parent / "evidence"]
    done = nsabench("images", "build", "cpu", "--base", BASE, "--wheelhouse", wheels, *evidence)
    assert done.returncode == 0, done.stderr
    return next(word for word in done.stdout.split() if word.startswith("sha256:")), sources


@pytest.fixture(scope="module")
def image(built: tuple[str, str]) -> str:
    return built[0]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    if os.getuid() == 0:
        os.chown(folder, 1000, 1000)
    return folder


def in_image(results: Path, *arguments: object, **options: object) -> list[str]:
    given = [x for name, value in options.items() for x in (f"--{name}", value)]
    user = ["--user", OWNER] if os.getuid() == 0 else []
    return command(
        "images", "run", "cpu", "--results", results, "--memory", "8g", *user, *given, "--",
        *arguments,
    )  # fmt: skip


def test_the_documented_run_is_verified_outside(image: str, results: Path) -> None:
    """`docker run … nsabench:cpu all` as docker/README.md has it, to the letter."""
    text = (CHECKOUT.docker / "README.md").read_text()
    commands = re.findall(r"^    (docker run (?:.*\\\n)*.*)$", text, re.MULTILINE)
    (documented,) = [command for command in commands if "nsabench:cpu all" in command]
    for part in ("--network none", "--read-only", "--user 1000:1000", "--cap-drop ALL"):
        assert part in documented
    if os.getuid() not in (0, 1000):
        pytest.skip("the results must belong to uid 1000")
    done = subprocess.run(
        ["sh", "-c", documented], cwd=results.parent, capture_output=True, text=True, timeout=840
    )
    # 1: complete, but a time came out odd on a busy machine. Whether times are right is for others.
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr
    run = results / "first"
    assert (run / "report.html").stat().st_size > 500_000, "charts included"
    assert nsabench("verify", run).returncode == 0
    assert (run / "records.parquet").stat().st_uid == 1000
    environment = json.loads((run / "environment.json").read_text())
    assert environment["container"]["runtime"] == "docker"
    assert environment["container"]["combo"] == "cpu"
    assert environment["software"]["lock_sha256"] == lock.sha256(CHECKOUT.lock("cpu"))


@pytest.fixture
def begun(image: str, results: Path, tmp_path: Path) -> Iterator[tuple[Path, Popen, Path]]:
    """A run that has begun: its matrix, the process that follows it, and its folder."""
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    running = subprocess.Popen(
        in_image(results, "run", "/input/tiny.yaml", "--out", "results/run", input=matrix),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    journal = results / "run" / "journal.jsonl"
    deadline = time.monotonic() + 200
    while not journal.is_file() or journal.read_bytes().count(b"\n") < 4:
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    yield matrix, running, results / "run"
    running.kill()
    running.communicate()


def resume(results: Path, matrix: Path) -> None:
    done = subprocess.run(
        in_image(results, "run", "--resume", "results/run", input=matrix), timeout=300
    )
    # As above: a control may have been missed since the machine was busy; nothing may be missing.
    assert done.returncode in (0, 1)
    records = pq.read_table(results / "run" / "records.parquet").to_pylist()
    measured = [(record["case_id"], record["implementation"]) for record in records]
    assert len(measured) == len(set(measured))
    wanted = len(yaml.safe_load(TINY)["axes"]["L"])
    for name in yaml.safe_load(TINY)["implementations"]["only"]:
        mine = [r for r in records if r["implementation"] == name]
        assert [r["status"] for r in mine] == ["ok"] * wanted, name


def test_a_killed_run_can_be_resumed(
    image: str, begun: tuple[Path, Popen, Path], results: Path
) -> None:
    matrix, running, folder = begun
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["container"]["image_digest"] == image, "`images run` handed it in"
    mine = ["docker", "ps", "--quiet", "--filter", f"volume={results}"]
    (container,) = subprocess.check_output(mine, text=True).split()
    subprocess.run(["docker", "kill", container], check=True, capture_output=True)
    assert running.wait(60) != 0
    assert not list(folder.glob("*.parquet*"))
    resume(results, matrix)


def test_results_that_become_unwritable(begun: tuple[Path, Popen, Path], results: Path) -> None:
    matrix, running, folder = begun
    mode = folder.stat().st_mode
    folder.chmod(0o555)
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 3, said
    assert "Traceback" not in said and "cannot be written" in said and "--resume" in said
    assert not list(folder.glob("*.parquet*"))
    folder.chmod(mode)
    resume(results, matrix)


def test_results_that_cannot_be_written(image: str, results: Path) -> None:
    results.chmod(0o555)
    done = subprocess.run(
        in_image(results, "all", "--quick", "--out", "results/run"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert "cannot be made" in done.stdout + done.stderr or "cannot be written" in done.stderr
    assert not list(results.iterdir())


def test_an_image_that_is_not_built(results: Path) -> None:
    done = nsabench("images", "run", "torch2.2.2-cu121", "--results", results, "--gpus", "none")
    assert done.returncode == 2
    assert "there is no image" in done.stderr and "images build" in done.stderr


@pytest.mark.parametrize("health", ["healthy", "unhealthy"])
def test_labels_health_and_bill_of_materials(
    built: tuple[str, str], results: Path, health: str
) -> None:
    image, sources = built
    client = daemon.connect()
    labels = client.images.get(image).labels
    assert labels["nsabench.combo"] == "cpu"
    assert labels["nsabench.lock.sha256"] == lock.sha256(CHECKOUT.lock("cpu"))
    assert labels["org.opencontainers.image.revision"] == sources
    assert labels["org.opencontainers.image.base.name"] == BASE
    assert labels["org.opencontainers.image.base.digest"] == client.images.get(BASE).id
    # Doctor has nothing against the one, and cannot write the results of the other.
    results.chmod(0o755 if health == "healthy" else 0o555)
    asked = launch.Launch("cpu", [], results, user=OWNER if os.getuid() == 0 else "")
    second = 10**9
    settings = launch._settings(asked, image) | {
        "entrypoint": ["sleep", "300"],
        "healthcheck": {"interval": second, "timeout": 120 * second},  # the image's own test
    }
    container = client.containers.create(image, **settings)
    try:
        container.start()
        code, bill = container.exec_run(["cat", "/usr/share/nsabench/sbom.cdx.json"])
        assert code == 0
        names = {component["name"] for component in json.loads(bill)["components"]}
        assert names == {name for name, _ in lock.pinned(CHECKOUT.lock("cpu"))}
        deadline = time.monotonic() + 200
        container.reload()
        while (found := container.attrs["State"]["Health"])["Status"] == "starting":
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
            container.reload()
        assert found["Status"] == health, found
        assert ('"code": "unwritable"' in found["Log"][-1]["Output"]) == (health == "unhealthy")
    finally:
        container.remove(force=True)


def test_what_a_program_of_an_image_prints_is_whole() -> None:
    """A log that is followed lacks, one time in twenty, a last line that has no end."""
    client = daemon.connect()
    line = "head -c 200000 /dev/zero | tr '\\0' x; printf END"
    for _ in range(10):
        said = daemon.printed(client, BASE, "sh", ["-c", line])
        assert (len(said), said[-4:]) == (200_003, b"xEND")
    with pytest.raises(NsabenchError, match=r"sh in .* exited with 3: not here"):
        daemon.printed(client, BASE, "sh", ["-c", "echo not here >&2; exit 3"])


def test_an_image_is_what_its_lock_and_its_provenance_say(image: str, wheels: Path) -> None:
    file = provenance.place(wheels.parent / "evidence", "cpu")
    statement = provenance.read(file)
    assert statement["subject"][0]["digest"]["sha256"] == image.removeprefix("sha256:")
    done = nsabench("images", "verify", "cpu", "--provenance", file, "--json")
    assert done.returncode == 0, done.stdout
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert "is of this image" in checks["provenance"]["detail"]
    # A library that was exchanged, with what it is called left as it was.
    client = daemon.connect()
    container = client.containers.create(
        image,
        ["-c", "open('/opt/nsabench/lib/python3.11/site-packages/click/core.py', 'a').write('#')"],
        entrypoint="python",
        user="0:0",
    )
    try:
        container.start()
        assert container.wait()["StatusCode"] == 0
        container.commit("nsabench", "cpu")
        done = nsabench("images", "verify", "cpu", "--provenance", file)
    finally:
        container.remove(force=True)
        client.images.get(image).tag("nsabench", "cpu")
    assert done.returncode == 4
    assert "click/core.py was changed" in done.stdout
    assert "FAILED provenance" in done.stdout and "other layers" in done.stdout


def test_a_build_of_the_same_sources_is_the_same_image(
    built: tuple[str, str], wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsabench is installed anew, since a file that is not of it differs; torch is not."""
    image, sources = built
    # The copy is no checkout that would say so.
    monkeypatch.setattr(building, "revision", lambda _: sources)
    monkeypatch.setenv(settled.EPOCH, str(int(settled.time_of(CHECKOUT.root).timestamp())))
    for part in (*context.SOURCES, "docker"):
        origin, target = CHECKOUT.root / part, tmp_path / part
        if origin.is_dir():
            shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__", "build"))
        else:
            shutil.copyfile(origin, target)
    (tmp_path / "kernels/tests/new.txt").write_text(str(time.time()))
    client = daemon.connect()
    try:
        again = building.build(
            combos.Checkout(tmp_path), "cpu", base=BASE, wheelhouse=wheels, say=print
        )
        first, second = (client.images.get(i).attrs["RootFS"]["Layers"] for i in (image, again))
    finally:
        client.images.get(image).tag("nsabench", "cpu")
    assert first == second
    assert again == image
    # Of a folder that a layer only adds to, it would hold the time: a build without the daemon's
    # cache would be another one.
    words = ["/opt/nsabench", "/results", "/usr/share", "-newermt", "1981-01-01", "-path"]
    found = daemon.printed(client, image, "find", [*words, "*nsabench*"])
    found += daemon.printed(client, image, "find", ["/usr/share", "-maxdepth", "0", *words[3:5]])
    assert found == b""


def test_the_digest_of_an_image_hangs_on_no_time() -> None:
    from docker.errors import ImageNotFound

    client, tag = daemon.connect(), "nsabench-test:settled"
    text = io.BytesIO(f'FROM {BASE}\nRUN true\nENV A=B\nCOPY Dockerfile /\nCMD ["env"]\n'.encode())
    try:
        ids, digests, when = [], [], datetime(2026, 1, 2, tzinfo=UTC)
        for _ in range(2):
            built, _lines = client.images.build(
                fileobj=text, tag=tag, nocache=True, network_mode="host", rm=True
            )
            ids.append(built.id)
            digests.append(settled.settle(client, tag, when))
            text.seek(0)
            time.sleep(1)
        assert ids[0] != ids[1] and digests[0] == digests[1]
        assert settled.settle(client, tag, when) == digests[0]
        found = client.images.get(tag).attrs
        assert found["Created"] == "2026-01-02T00:00:00Z"
        assert found["RootFS"] == client.images.get(ids[1]).attrs["RootFS"]
        assert "A=B" in found["Config"]["Env"] and found["Config"]["Cmd"] == ["env"]
        assert b"A=B" in client.containers.run(tag, network_mode="none", remove=True)
    finally:
        for name in (tag, *ids):
            with suppress(ImageNotFound):
                client.images.remove(name, force=True)


def test_the_same_lock_without_a_container(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uv")
    folder, kept = tmp_path / "venv", tmp_path / "uv"
    monkeypatch.setenv("UV_CACHE_DIR", str(kept))
    made = nsabench("images", "venv", "cpu", "--folder", folder, "--wheelhouse", wheels)
    assert made.returncode == 0, made.stderr
    # Unpacked wheels, which nobody would find again; a link to one is still one file.
    assert not list(kept.rglob("torch")) and not list(folder.glob(".uv-*"))
    done = nsabench("images", "verify", "cpu", "--venv", folder)
    assert done.returncode == 0, done.stdout
    asked = [folder / "bin/nsabench", "doctor", "--json"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    environment = json.loads(said.stdout)["environment"]
    container, software = environment["container"], environment["software"]
    assert (container["runtime"], container["combo"]) == ("venv", "cpu")
    assert software["lock_sha256"] == lock.sha256(CHECKOUT.lock("cpu"))
    (folder / "lib/python3.11/site-packages/click/core.py").unlink()
    done = nsabench("images", "verify", "cpu", "--venv", folder)
    assert done.returncode == 4 and "click/core.py is missing" in done.stdout


def test_a_worker_finds_bytecode(image: str) -> None:
    """An image can keep none as it runs: each worker spent 9 s compiling torch."""
    source = (
        "import pathlib, sys, nsa_kernels, nsabench.execution.worker, torch._dynamo\n"
        "made = {m.__name__: m.__cached__ for m in list(sys.modules.values())"
        " if isinstance(getattr(m, '__cached__', None), str)}\n"
        "print(len(made), *(m for m, path in made.items() if not pathlib.Path(path).is_file()))"
    )
    asked = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python", image]
    done = subprocess.run([*asked, "-c", source], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    count, *without = done.stdout.split()
    assert int(count) > 500 and not without, without


def test_a_few_attacks_gain_nothing_in_it(image: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`just attacks-in-container` makes them all."""
    few = ["tests/attacks/test_attacks.py", "-k", elsewhere.FEW]
    assert elsewhere.in_container(few, image) == 0
    assert f"{len(elsewhere.FEW.split(' or '))} passed" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("gpus", "count", "ids"), [("all", -1, []), ("0,1", 0, ["0", "1"]), ("GPU-7f", 0, ["GPU-7f"])]
)
def test_the_daemon_receives_the_request_for_gpus(
    image: str, results: Path, gpus: str, count: int, ids: list[str]
) -> None:
    settings = launch._settings(launch.Launch("cpu", ["doctor"], results, gpus=gpus), image)
    container = daemon.connect().containers.create(image, **settings)
    try:
        received = container.attrs["HostConfig"]
    finally:
        container.remove(force=True)
    (request,) = received["DeviceRequests"]
    assert (request["Count"], request["DeviceIDs"]) == (count, ids)
    assert request["Capabilities"] == [["gpu"]]
    assert received["ReadonlyRootfs"] and received["CapDrop"] == ["ALL"]
    assert received["NetworkMode"] == "none" and received["PidsLimit"] == 4096
    assert received["SecurityOpt"] == ["no-new-privileges"] and received["Memory"] == 16 << 30


def test_a_gpu_where_there_is_no_runtime(image: str, results: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    done = nsabench("images", "run", "cpu", "--results", results, "--gpus", "all")
    assert done.returncode == 3
    assert "no GPU runtime" in done.stderr and "Toolkit" in done.stderr


@pytest.fixture(scope="module")
def podman_tool(image: str) -> Iterator[list[str]]:
    """The words that start a podman with folders of its own, which has the image."""
    if os.getuid() != 0 or shutil.which("podman") is None:
        pytest.skip("no podman, or not root")
    # A short name: the path of a socket has room for 107 characters.
    with tempfile.TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as folder:
        tool = ["podman", "--root", f"{folder}/root", "--runroot", f"{folder}/run"]
        if shutil.which("runc"):
            tool += ["--runtime", "runc"]  # crun has no use for a machine with both cgroups
        saved = subprocess.Popen(["docker", "save", "nsabench:cpu"], stdout=subprocess.PIPE)
        subprocess.run([*tool, "load", "--quiet"], stdin=saved.stdout, check=True, timeout=400)
        assert saved.wait(60) == 0
        try:
            yield tool
        finally:
            subprocess.run([*tool, "rmi", "--all", "--force"], capture_output=True, timeout=120)


@pytest.fixture
def podman(podman_tool: list[str]) -> Iterator[str]:
    """The address of its service."""
    with tempfile.TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as folder:
        address = f"unix://{folder}/socket"
        service = subprocess.Popen(
            [*podman_tool, "system", "service", "--time=0", address], stderr=subprocess.DEVNULL
        )
        try:
            while not Path(folder, "socket").exists():
                assert service.poll() is None
                time.sleep(0.1)
            yield address
        finally:
            service.terminate()
            service.wait(30)


def test_podman_through_its_socket(
    podman: str, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", podman)
    done = subprocess.run(in_image(results, "doctor"), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "podman" in done.stdout
    done = subprocess.run(
        in_image(results, "plan", "quick", "--device", "cpu"), capture_output=True, timeout=200
    )
    assert done.returncode == 0
    done = nsabench("images", "run", "cpu", "--results", results, "--gpus", "all")
    assert done.returncode == 3, "podman forgets the request, and the run would have no GPU"
    assert "takes no requests for GPUs" in done.stderr and "--device nvidia.com" in done.stderr
