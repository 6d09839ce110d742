"""Build and run the image of the combo `cpu`. `.ci/run` provides the daemon and the base image."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.images import combos, daemon, launch, lock
from tests.attacks import elsewhere

BASE = os.environ.get("NSABENCH_TEST_BASE", "")
OWNER = "1000:1000"
CHECKOUT = combos.checkout()
TINY = """
op: selection_rows
axes: {N: 4, H: 2, D: 32, L: [8, 16, 24, 32, 40, 48, 56, 64]}
implementations: {only: [sdpa_gqa, bmm_softmax, rows_group]}
timing: {stopping: {kind: fixed_count, rounds: 5}}
"""

pytestmark = pytest.mark.timeout(900, func_only=True)  # the image is built in a fixture

Popen = subprocess.Popen[str]


def command(*arguments):
    return [sys.executable, "-m", "nsabench", *map(str, arguments)]


def nsabench(*arguments):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=840)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpu") / "wheels"
    download = ["download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    index = ["--extra-index-url", CHECKOUT.combos().get("cpu").index]
    asked = [*download, *index, "--dest", folder, "--requirement", CHECKOUT.lock("cpu")]
    subprocess.run([sys.executable, "-m", "pip", *map(str, asked)], check=True, timeout=840)
    return folder


@pytest.fixture(scope="module")
def built(wheels):
    """Build the image. Return its id and the revision of its sources."""
    sources = CHECKOUT.revision()
    done = nsabench("images", "build", "cpu", "--base", BASE, "--wheelhouse", wheels)
    assert done.returncode == 0, done.stderr
    return next(word for word in done.stdout.split() if word.startswith("sha256:")), sources


@pytest.fixture(scope="module")
def image(built):
    return built[0]


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    if os.getuid() == 0:
        os.chown(folder, 1000, 1000)
    return folder


def in_image(results, *arguments, **options):
    given = [x for name, value in options.items() for x in (f"--{name}", value)]
    user = ["--user", OWNER] if os.getuid() == 0 else []
    return command(
        "images", "run", "cpu", "--results", results, "--memory", "8g", *user, *given, "--",
        *arguments,
    )  # fmt: skip


def test_the_documented_run_is_verified_outside(image, results):
    """The command `docker run … nsabench:cpu all` is run exactly as in docker/README.md."""
    text = (CHECKOUT.docker / "README.md").read_text()
    commands = re.findall(r"^(docker run (?:.*\\\n)*.*)$", text, re.MULTILINE)
    (documented,) = [command for command in commands if "nsabench:cpu all" in command]
    for part in ("--network none", "--read-only", "--user 1000:1000", "--cap-drop ALL"):
        assert part in documented
    if os.getuid() not in (0, 1000):
        pytest.skip("the results must belong to uid 1000")
    done = subprocess.run(
        ["sh", "-c", documented], cwd=results.parent, capture_output=True, text=True, timeout=840
    )
    # 1: the run is complete, but a busy machine disturbed a time. Other tests check times.
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr
    run = results / "first"
    assert (run / "report.html").stat().st_size > 500_000, "charts included"
    assert nsabench("verify", run).returncode == 0
    assert (run / "records.parquet").stat().st_uid == 1000
    environment = json.loads((run / "environment.json").read_text())
    assert environment["container"]["runtime"] == "docker"
    assert environment["container"]["combo"] == "cpu"


@pytest.fixture
def begun(image, results, tmp_path):
    """Begin a run in a container. Yield its matrix, the process that follows it, and its folder."""
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    running = subprocess.Popen(
        in_image(results, "run", "/input/tiny.yaml", "--out", "results/run", input=matrix),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = results / "run" / "log.jsonl"
    deadline = time.monotonic() + 200
    while not log.is_file() or log.read_bytes().count(b'"kind":"ended"') < 2:
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    yield matrix, running, results / "run"
    running.kill()
    running.communicate()


def resume(results, matrix):
    done = subprocess.run(
        in_image(results, "run", "--resume", "results/run", input=matrix), timeout=300
    )
    # 1: noise may keep a control uncaught, but no record may be missing.
    assert done.returncode in (0, 1)
    records = pq.read_table(results / "run" / "records.parquet").to_pylist()
    measured = [(record["case_id"], record["implementation"]) for record in records]
    assert len(measured) == len(set(measured))
    wanted = len(yaml.safe_load(TINY)["axes"]["L"])
    for name in yaml.safe_load(TINY)["implementations"]["only"]:
        mine = [r for r in records if r["implementation"] == name]
        assert [r["status"] for r in mine] == ["ok"] * wanted, name


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_a_run_that_docker_ended_is_resumed_from_the_results_alone(image, begun, results, ending):
    matrix, running, folder = begun
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["container"]["image_digest"] == image, "`images run` handed it in"
    mine = ["docker", "ps", "--quiet", "--filter", f"volume={results}"]
    (container,) = subprocess.check_output(mine, text=True).split()
    patience = ["-t", "60"] if ending == "stop" else []
    subprocess.run(["docker", ending, *patience, container], check=True, capture_output=True)
    output, _ = running.communicate(timeout=90)
    if ending == "stop":
        assert running.returncode == 130 and "--resume results/run" in output
    else:
        assert running.returncode != 0 and not list(folder.glob("*.parquet*"))
    resume(results, matrix)


def run_as_documented(results, *changes):
    """Run a small `all` with docker alone. changes: pairs of an old and a new option of docker."""
    options = "--rm --read-only --network none --cap-drop ALL --tmpfs /tmp:rw,exec"
    for old, new in changes:
        options = options.replace(old, new)
    words = ["docker", "run", *options.split(), "-v", f"{results}:/results", "nsabench:cpu"]
    words += ["all", "quick", "--device", "cpu", "--out", "results/first"]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def test_results_that_the_daemon_made_as_root(image, tmp_path):
    done = run_as_documented(tmp_path / "results")
    assert done.returncode == UsageError.exit_code
    assert "Traceback" not in done.stderr
    assert "--user" in done.stderr and "uid 1000" in done.stderr and "chown" in done.stderr


def test_a_container_without_a_folder_for_temporary_files(image, results):
    done = run_as_documented(results, ("--tmpfs /tmp:rw,exec", f"--user {OWNER}"))
    assert done.returncode == EnvironmentRefused.exit_code
    assert "Traceback" not in done.stderr and "--tmpfs /tmp:rw,exec" in done.stderr


def test_an_image_that_is_not_built(results):
    done = nsabench("images", "run", "torch2.4.1-cu121", "--results", results, "--gpus", "none")
    assert done.returncode == 2
    assert "does not exist" in done.stderr and "images build" in done.stderr


def test_labels(built):
    image, sources = built
    found = daemon.connect().images.get(image)
    labels, config = found.labels, found.attrs["Config"]
    assert not config.get("Healthcheck") and "NVIDIA_REQUIRE_CUDA=" in config["Env"]
    assert labels["nsabench.combo"] == "cpu"
    assert labels["nsabench.lock.sha256"] == lock.sha256(CHECKOUT.lock("cpu"))
    assert labels["org.opencontainers.image.revision"] == sources
    assert labels["org.opencontainers.image.base.name"] == BASE


def test_a_worker_finds_bytecode(image):
    """A container is read-only, so each worker would compile every module that has no bytecode."""
    source = (
        "import pathlib, sys, nsa_kernels, nsabench.worker, torch._dynamo\n"
        "made = {m.__name__: m.__cached__ for m in list(sys.modules.values())"
        " if isinstance(getattr(m, '__cached__', None), str)}\n"
        "print(len(made), *(m for m, path in made.items() if not pathlib.Path(path).is_file()))"
    )
    asked = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python", image]
    done = subprocess.run([*asked, "-c", source], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    count, *without = done.stdout.split()
    assert int(count) > 500 and not without, without


def test_a_few_attacks_gain_nothing_in_it(image, capfd):
    """`just attacks-in-container` runs all of them."""
    few = ["tests/attacks/test_attacks.py", "-k", elsewhere.FEW]
    assert elsewhere.in_container(few, image) == 0
    assert f"{len(elsewhere.FEW.split(' or '))} passed" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("gpus", "count", "ids"), [("all", -1, []), ("0,GPU-7f", 0, ["0", "GPU-7f"])]
)
def test_the_daemon_receives_the_request_for_gpus(image, results, gpus, count, ids):
    settings = launch._make_settings(launch.Launch("cpu", ["doctor"], results, gpus=gpus), image)
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


def test_a_gpu_where_there_is_no_runtime(image, results):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    done = nsabench("images", "run", "cpu", "--results", results, "--gpus", "all")
    assert done.returncode == 3
    assert "no GPU runtime" in done.stderr and "Toolkit" in done.stderr
