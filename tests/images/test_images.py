"""Combos, locks and settings of containers, tested without a daemon."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from nsabench import programs
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.images import build as building
from nsabench.images import combos, launch, lock
from nsabench.machine.environment.pairs import OLDEST_DRIVER, PAIRS
from nsabench.preflight.targets import is_supported
from tests.commands import invoke

CHECKOUT = combos.checkout()
COMBOS = CHECKOUT.combos()


def test_the_combos_are_the_pairs_that_nsabench_knows():
    combos = [c for c in COMBOS.combos.values() if c.cuda and not c.packages]
    of_file = [(c.torch, c.triton, c.cuda) for c in combos]
    assert of_file == [(p.torch, p.triton, p.cuda) for p in PAIRS]


@pytest.mark.parametrize("name", [n for n, c in COMBOS.combos.items() if c.cuda])
def test_a_combo_names_the_driver_of_its_cuda(name):
    combo = COMBOS.get(name)
    assert combo.cuda is not None
    assert combo.driver == OLDEST_DRIVER[int(combo.cuda.split(".")[0])]
    assert all(is_supported(combo.triton, architecture) for architecture in combo.architectures)


@pytest.mark.parametrize("name", list(COMBOS.combos))
def test_a_lock_pins_the_combo_and_hashes_all_of_it(name):
    combo, path = COMBOS.get(name), CHECKOUT.lock(name)
    pinned = dict(lock.pinned(path))
    assert (pinned["torch"], pinned["triton"]) == (combo.torch, combo.triton)
    entries = re.split(r"^(?=[a-zA-Z0-9])", path.read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == len(pinned)
    assert all("--hash=sha256:" in entry for entry in entries)
    assert lock.recorded_requirements(path) == lock.requirements(CHECKOUT, combo), (
        "run: nsabench images lock"
    )
    for requirement in map(Requirement, lock.recorded_requirements(path)):
        assert requirement.specifier.contains(pinned[requirement.name.lower()])


def test_the_extra_torch_allows_every_combo():
    extra = tomllib.loads((CHECKOUT.root / "pyproject.toml").read_text())["project"]
    asked = {r.name: r for r in map(Requirement, extra["optional-dependencies"]["torch"])}
    for name, combo in COMBOS.combos.items():
        assert asked["torch"].specifier.contains(combo.torch), name
        assert asked["triton"].specifier.contains(combo.triton), name


def test_the_core_install_has_every_command():
    """Each command imports a package of an extra only when it runs."""
    extras = ("packaging", "docker", "duckdb", "obstore", "vl_convert")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({extras!r}));"
        "from nsabench.cli import _help, group;"
        "[group.get_command(None, name) for name in _help.SUMMARIES]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def checkout_with_a_lock(folder):
    projects = ("pyproject.toml", "kernels/pyproject.toml")
    for name in ("docker/combos.yaml", "docker/locks/cpu.txt", *projects):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT.root / name, folder / name)
    return combos.Checkout(folder)


def test_a_lock_of_other_requirements_is_not_built_from(tmp_path):
    copied = checkout_with_a_lock(tmp_path)
    assert lock.existing(copied, "cpu") == copied.lock("cpu")
    project = (tmp_path / "pyproject.toml").read_text()
    for old, new in (('"click>=8.1"', '"click>=8.2"'), ("vl-convert-python>=1.7", "x>=1")):
        assert old in project
        (tmp_path / "pyproject.toml").write_text(project.replace(old, new))
        with pytest.raises(UsageError, match="requirements of cpu changed") as caught:
            lock.existing(copied, "cpu")
        assert "nsabench images lock cpu" in caught.value.remedy


def test_a_lock_without_uv_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(programs, "has", lambda name: False)
    with pytest.raises(EnvironmentRefused, match="uv is not installed"):
        programs.run([*programs.UV, "compile"], "resolving", 1.0)


def test_the_base_is_pinned_by_digest():
    assert re.search(r"@sha256:[0-9a-f]{64}$", COMBOS.base)
    assert f"ARG BASE={COMBOS.base}\n" in (CHECKOUT.docker / "Dockerfile").read_text()


class Client:
    """A client that records what its daemon is to create. forgets: whether the daemon drops
    requests for GPUs, as podman does."""

    def __init__(self, forgets=False):
        self.forgets, self.asked, self.removed = forgets, dict[str, Any](), False
        self.images = SimpleNamespace(get=lambda image: SimpleNamespace(id="sha256:1"))
        self.containers = SimpleNamespace(create=self.create)
        self.api = SimpleNamespace(build=self.build)

    def build(self, **settings):
        self.asked = settings
        return []

    def create(self, image, **settings):
        self.asked = settings
        requests = None if self.forgets else settings["device_requests"]
        return SimpleNamespace(
            attrs={"HostConfig": {"DeviceRequests": requests}},
            start=lambda: None,
            logs=lambda **_: [b"a li", b"ne\n"],
            wait=lambda: {"StatusCode": 3},
            remove=lambda force: setattr(self, "removed", force),
        )


def test_the_container_is_shut_off(tmp_path, monkeypatch):
    pytest.importorskip("docker")
    client, said = Client(), list[str]()
    monkeypatch.setattr("nsabench.images.daemon.connect", lambda: client)
    asked = launch.Launch("cpu", ["all"], tmp_path, gpus="0,1", inputs=[Path("m.yaml")])
    assert (launch.run(asked, said.append), said, client.removed) == (3, ["a line"], True)
    settings = client.asked
    assert settings["read_only"] and settings["network_mode"] == "none"
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges"]
    assert settings["device_requests"][0]["DeviceIDs"] == ["0", "1"]
    assert settings["environment"]["NSABENCH_IMAGE_DIGEST"] == "sha256:1"
    binds = {v["bind"]: v["mode"] for v in settings["volumes"].values()}
    assert binds == {"/results": "rw", "/input/m.yaml": "ro"}


@pytest.mark.parametrize(
    ("name", "required"),
    [("cpu", ""), ("torch2.11.0-cu130", "driver>=580")],
)
def test_an_image_asks_the_host_for_the_driver_of_its_cuda(monkeypatch, name, required):
    """For an image with this requirement, NVIDIA's container toolkit refuses an older driver."""
    pytest.importorskip("docker")
    client = Client()
    monkeypatch.setattr("nsabench.images.daemon.connect", lambda: client)
    building.build(CHECKOUT, name)
    assert client.asked["buildargs"]["REQUIRE"] == required


def test_a_daemon_that_forgets_the_request_for_gpus_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("docker")
    client = Client(forgets=True)
    monkeypatch.setattr("nsabench.images.daemon.connect", lambda: client)
    with pytest.raises(EnvironmentRefused) as refused:
        launch.run(launch.Launch("cpu", ["all"], tmp_path, gpus="all"), print)
    assert "podman" in refused.value.remedy and client.removed


def test_no_daemon_is_one_sentence_and_a_remedy(tmp_path):
    pytest.importorskip("docker")
    socket = f"unix://{tmp_path}/none.sock"
    done = invoke("images", "run", "cpu", "--results", tmp_path, DOCKER_HOST=socket)
    assert isinstance(done.error, EnvironmentRefused) and done.error.remedy
    assert "no container daemon answers" in str(done.error)


def test_a_lock_that_cannot_be_resolved_leaves_the_one_before(tmp_path, monkeypatch):
    copied = checkout_with_a_lock(tmp_path)
    before = copied.lock("cpu").read_bytes()

    def fails(*_):
        raise EnvironmentRefused("the index cannot be reached")

    monkeypatch.setattr("nsabench.programs.run", fails)
    with pytest.raises(EnvironmentRefused):
        lock.write(copied, "cpu", "2026-11-01")
    assert copied.lock("cpu").read_bytes() == before
    assert [p.name for p in copied.lock("cpu").parent.iterdir()] == ["cpu.txt"]
