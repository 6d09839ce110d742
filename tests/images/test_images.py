"""Combos, locks and the settings of a container, without a daemon."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.images import (
    apptainer,
    combos,
    context,
    daemon,
    dockerfile,
    launch,
    lock,
    matrix,
    programs,
    provenance,
    sbom,
    settled,
    verify,
)
from nsabench.images.wheelhouse import existing_lock
from nsabench.machine.environment.pairs import OLDEST_DRIVER, PAIRS
from nsabench.preflight.architectures import declared
from nsabench.signing.signer import load_signer
from tests import forked

CHECKOUT = combos.checkout()
COMBOS = CHECKOUT.combos()


def test_the_combos_are_the_pairs_that_nsabench_knows() -> None:
    combos = [c for c in COMBOS.combos.values() if c.cuda and not c.packages]
    of_file = [(c.torch, c.triton, c.cuda) for c in combos]
    assert of_file == [(p.torch, p.triton, p.cuda) for p in PAIRS]


@pytest.mark.parametrize("name", [n for n, c in COMBOS.combos.items() if c.cuda])
def test_a_combo_names_the_driver_of_its_cuda(name: str) -> None:
    combo = COMBOS.get(name)
    assert combo.cuda is not None
    assert combo.driver == OLDEST_DRIVER[int(combo.cuda.split(".")[0])]
    if not combo.triton.startswith("2."):
        assert all(declared(combo.triton, architecture) for architecture in combo.architectures)


@pytest.mark.parametrize("name", list(COMBOS.combos))
def test_a_lock_pins_the_combo_and_hashes_all_of_it(name: str) -> None:
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


def test_what_the_oldest_combos_need_is_said() -> None:
    extra = tomllib.loads((CHECKOUT.root / "pyproject.toml").read_text())["project"]
    asked = {r.name: r for r in map(Requirement, extra["optional-dependencies"]["torch"])}
    for name, combo in COMBOS.combos.items():
        assert asked["torch"].specifier.contains(combo.torch), name
        assert asked["triton"].specifier.contains(combo.triton), name
        # `nsa_kernels.jit.compat.check_version` refuses older ones, and with it every command.
        assert combo.kernels == (Version(combo.triton) >= Version("3")), name
        pinned = dict(lock.pinned(CHECKOUT.lock(name)))
        # pyarrow 26.0.1: "ImportError: pyarrow requires NumPy 2.0 or newer".
        assert Version(pinned["numpy"]) >= Version("2") or Version(pinned["pyarrow"]).major < 26


def test_the_core_install_has_every_command() -> None:
    """Of the extras each command imports what it needs when it runs."""
    extras = ("packaging", "docker", "duckdb", "obstore", "jinja2", "vl_convert", "sigstore")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); import nsabench.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_lock_of_flash_attn_is_its_sdist() -> None:
    path = CHECKOUT.lock(lock.FLASH_ATTN)
    assert lock.recorded_requirements(path) == [lock.FLASH_ATTN_PIN]
    assert ["==".join(pin) for pin in lock.pinned(path)] == lock.recorded_requirements(path)


def test_a_lock_of_other_requirements_is_not_built_from(tmp_path: Path) -> None:
    projects = ("pyproject.toml", "kernels/pyproject.toml")
    for name in ("docker/combos.yaml", "docker/locks/cpu.txt", *projects):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT.root / name, tmp_path / name)
    copied = combos.Checkout(tmp_path)
    assert existing_lock(copied, "cpu") == copied.lock("cpu")
    project = (tmp_path / "pyproject.toml").read_text()
    for old, new in (('"click>=8.1"', '"click>=8.2"'), ('"jinja2>=3.1", ', "")):
        assert old in project
        (tmp_path / "pyproject.toml").write_text(project.replace(old, new))
        with pytest.raises(UsageError, match="requirements of cpu changed") as caught:
            existing_lock(copied, "cpu")
        assert "nsabench images lock cpu" in caught.value.remedy


# Validation takes its seconds; it is part of writing one, for every combo.
@pytest.mark.parametrize("name", ["cpu", "torch2.15.0-cu132"])
def test_the_bill_of_materials_is_cyclonedx_and_names_the_whole_lock(
    name: str, tmp_path: Path
) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    locks = [CHECKOUT.lock(name), CHECKOUT.lock(lock.FLASH_ATTN)]
    text = sbom.write(CHECKOUT, locks, tmp_path / "sbom.cdx.json").read_text()
    bill = json.loads(text)
    assert bill["$schema"].startswith("http://cyclonedx.org/schema/bom-")
    if name == "cpu":
        version = SchemaVersion.from_version(bill["specVersion"])
        assert JsonStrictValidator(version).validate_str(text) is None
    listed = {(c["name"], c["version"]) for c in bill["components"]}
    assert listed == {pin for path in locks for pin in lock.pinned(path)}
    for component in bill["components"]:
        hashes = component["externalReferences"][0]["hashes"]
        assert hashes and all(h["alg"] == "SHA-256" for h in hashes)
    assert bill["metadata"]["component"]["name"] == "nsabench"


def test_the_bill_of_materials_holds_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where who builds names one: a layer is the same of every commit."""
    texts = []
    for epoch in ("", "1764028800"):
        if epoch:
            monkeypatch.setenv(settled.EPOCH, epoch)
        texts.append(sbom.write(CHECKOUT, [CHECKOUT.lock("cpu")], tmp_path / "bill").read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("given", "year"), [("0", 1970), ("1764028800", 2025), ("soon", 0), ("9" * 30, 0)]
)
def test_the_time_of_an_image(given: str, year: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settled.EPOCH, given)
    if year:
        assert settled.time_of(CHECKOUT.root).year == year
        return
    with pytest.raises(UsageError, match=r"SOURCE_DATE_EPOCH is .*, which is no time"):
        settled.time_of(CHECKOUT.root)


def test_without_a_commit_an_image_is_of_1980(tmp_path: Path) -> None:
    assert settled.time_of(tmp_path).year == 1980


def test_a_tool_is_found_where_only_its_module_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = programs.find("cyclonedx-py", "cyclonedx-bom", "cyclonedx_py")
    assert found == [str(tmp_path / "python"), "-m", "cyclonedx_py"]
    with pytest.raises(EnvironmentRefused, match="no-such-tool is not installed"):
        programs.find("no-such-tool", "none", "no_such_module_of_a_tool")


def test_bases_are_pinned_by_digest() -> None:
    for base in (COMBOS.bases.runtime, *COMBOS.bases.devel.values()):
        assert re.search(r"@sha256:[0-9a-f]{64}$", base)


@pytest.mark.parametrize("name", [n for n, c in COMBOS.combos.items() if c.cuda])
def test_flash_attn_is_compiled_by_the_cuda_of_the_combo(name: str) -> None:
    major = (COMBOS.get(name).cuda or "").split(".")[0]
    assert f"nvidia/cuda:{major}." in COMBOS.bases.devel_of(name, COMBOS.get(name))


def test_flash_attn_is_not_compiled_for_a_cpu() -> None:
    with pytest.raises(UsageError, match="no CUDA devel base is known for the combo cpu"):
        COMBOS.bases.devel_of("cpu", COMBOS.get("cpu"))


@pytest.mark.parametrize("name", list(COMBOS.combos))
def test_a_lock_is_split_and_nothing_is_lost(name: str) -> None:
    common, own = context.split(CHECKOUT, name)
    whole = context.entries(CHECKOUT.lock(name))
    assert sorted(whole) == sorted(
        re.split(r"^(?=[A-Za-z0-9])", common, flags=re.MULTILINE)[1:]
        + re.split(r"^(?=[A-Za-z0-9])", own, flags=re.MULTILINE)[1:]
    )
    assert "torch==" in own and "torch==" not in common and "setuptools==" in common
    current = [n for n, c in COMBOS.combos.items() if c.cuda and c.numpy != "<2"]
    if name in current:
        assert "pyarrow==" in common
        assert {context.split(CHECKOUT, other)[0] for other in current} == {common}


def test_apptainer_does_what_the_dockerfile_does(tmp_path: Path) -> None:
    text = (CHECKOUT.docker / "Dockerfile").read_text()
    definition = apptainer.write(CHECKOUT, "torch2.5.1-cu124", tmp_path / "made").read_text()
    steps = definition.split("%post\n")[1].split("\n%environment")[0]
    stages = [stage for stage in dockerfile.stages(text) if "flash-attn" not in stage.name]
    runs = [i.text for stage in stages for i in stage.instructions if i.word == "RUN"]
    assert len(runs) == 4 and all(f"( {run} )" in steps for run in runs)
    assert "flash" not in steps
    subprocess.run(["sh", "-n", "-c", steps], check=True)
    for line in ("From: debian:bookworm-slim@sha256:", 'export NSABENCH_COMBO="torch2.5.1-cu124"'):
        assert line in definition
    assert f"nsabench.lock.sha256 {lock.sha256(CHECKOUT.lock('torch2.5.1-cu124'))}" in definition
    # Whatever it copies from the context is there.
    copied = re.findall(r"cp -a /context/(\S+)", steps)
    assert len(copied) > 8
    assert all((tmp_path / "made/context" / name).exists() for name in copied)
    with pytest.raises(UsageError, match="is not empty"):
        apptainer.write(CHECKOUT, "cpu", tmp_path / "made")


def test_provenance_is_of_one_image_and_cannot_be_changed(tmp_path: Path) -> None:
    source = provenance.Source("cpu", "base", "sha256:1", "nsabench")
    attributes = {"Id": "sha256:7f", "RootFS": {"Layers": ["sha256:a"]}}
    began = datetime(2026, 11, 23, tzinfo=UTC)
    statement = provenance.describe(CHECKOUT, source, attributes, began, {"Version": "20.10"})
    file = provenance.write(statement, load_signer({}), tmp_path, "cpu")
    assert provenance.read(file) == statement
    assert verify._origin(file, attributes).holds
    other = {"Id": "sha256:80", "RootFS": {"Layers": ["sha256:a"]}}
    assert verify._origin(file, other).detail == "another build, the same layers"
    assert not verify._origin(file, {**other, "RootFS": {"Layers": ["sha256:b"]}}).holds
    provenance.write(statement, load_signer({}), tmp_path / "other", "cpu")
    shutil.copy(tmp_path / "other/cpu.provenance.pub", tmp_path)
    assert not verify._origin(file, attributes).holds, "signed by another key"


def test_an_unknown_combo_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        COMBOS.get("torch2.5.1-cu121")
    assert "torch2.5.1-cu124" in caught.value.remedy


def test_the_container_is_shut_off(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    asked = launch.Launch("cpu", ["all"], tmp_path, gpus="0,1", inputs=[Path("m.yaml")])
    settings = launch._settings(asked, "sha256:1")
    assert settings["read_only"] and settings["network_mode"] == "none"
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges"]
    assert settings["device_requests"][0]["DeviceIDs"] == ["0", "1"]
    assert settings["environment"]["NSABENCH_IMAGE_DIGEST"] == "sha256:1"
    binds = {v["bind"]: v["mode"] for v in settings["volumes"].values()}
    assert binds == {"/results": "rw", "/input/m.yaml": "ro"}


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(launch.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EnvironmentRefused, match="is full"):
        launch._check_results(tmp_path)


def test_no_daemon_is_one_sentence_and_a_remedy(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    done = subprocess.run(
        [sys.executable, "-m", "nsabench", "images", "run", "cpu", "--results", str(tmp_path)],
        capture_output=True,
        text=True,
        env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "PATH": "/usr/bin:/bin"},
        timeout=120,
    )
    assert done.returncode == 3
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2 and "no container daemon answers" in lines[0]


def test_podmans_socket_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman/podman.sock").touch()
    # Docker's own comes first.
    assert daemon._addresses()[:2] == ["", f"unix://{tmp_path}/podman/podman.sock"]
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere")
    assert daemon._addresses() == [""]


def test_a_matrix_goes_on_after_a_combo_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def run(settings: launch.Launch, say: object) -> int:
        if settings.combo == "a":
            raise EnvironmentRefused("there is no daemon", "start it.")
        return 0

    monkeypatch.setattr(matrix, "run", run)

    def make(combo: str, arguments: object, inputs: object) -> launch.Launch:
        return launch.Launch(combo, [], tmp_path)

    outcomes = matrix.run_all(["a", "b"], ["quick"], make, said.append)
    assert [(o.combo, o.exit_code) for o in outcomes] == [("a", 3), ("b", 0)]
    assert "there is no daemon; start it." in said
    assert matrix.compared(outcomes) is None, "neither has records"


COMMANDS = ("list", "lock", "wheelhouse", "build", "sbom", "run", "matrix")


@pytest.mark.parametrize("name", [*COMMANDS, "venv", "apptainer", "verify"])
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = forked.run(["images", name, "--help"], Path.cwd(), os.environ, 60)
    assert done.returncode == 0 and f"nsabench images {name}" in done.stdout


def test_a_lock_that_cannot_be_resolved_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docker/combos.yaml", "docker/locks/cpu.txt", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT.root / name, tmp_path / name)
    (tmp_path / "kernels").mkdir()
    shutil.copy(CHECKOUT.root / "kernels/pyproject.toml", tmp_path / "kernels")
    copied = combos.Checkout(tmp_path)
    before = copied.lock("cpu").read_bytes()

    def fails(command: list[str], what: str, limit_s: float) -> None:
        raise EnvironmentRefused("the index cannot be reached")

    monkeypatch.setattr("nsabench.images.programs.run", fails)
    with pytest.raises(EnvironmentRefused):
        lock.lock(copied, "cpu", copied.combos().get("cpu"), "2026-11-01")
    assert copied.lock("cpu").read_bytes() == before
    assert [p.name for p in copied.lock("cpu").parent.iterdir()] == ["cpu.txt"]
