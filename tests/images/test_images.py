"""Combos, locks and the settings of a container, without a daemon."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nsabench.environment.pairs import OLDEST_DRIVER, PAIRS
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.images import combos, launch, lock, matrix
from nsabench.preflight.architectures import declared

CHECKOUT = combos.checkout()
COMBOS = CHECKOUT.combos()


def test_the_combos_are_the_pairs_that_nsabench_knows() -> None:
    of_file = [(c.torch, c.triton, c.cuda) for c in COMBOS.combos.values() if c.cuda]
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
    asked = {re.split(r"[<>=;\[ ]", r)[0] for r in lock.requirements(CHECKOUT, combo)}
    assert asked <= set(pinned), "made before the dependencies changed: nsabench images lock"


def test_bases_are_pinned_by_digest() -> None:
    for base in (COMBOS.bases.runtime, COMBOS.bases.devel):
        assert re.search(r"@sha256:[0-9a-f]{64}$", base)


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


def test_a_matrix_goes_on_after_a_combo_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = iter([3, 0])
    monkeypatch.setattr(matrix, "run", lambda settings, say: next(codes))

    def make(combo: str, arguments: object, inputs: object) -> launch.Launch:
        return launch.Launch(combo, [], tmp_path)

    outcomes = matrix.run_all(["a", "b"], ["quick"], make, lambda line: None)
    assert [(o.combo, o.exit_code) for o in outcomes] == [("a", 3), ("b", 0)]
    assert len(matrix.table(outcomes).columns) == 3


@pytest.mark.parametrize("name", ["list", "lock", "wheelhouse", "build", "sbom", "run", "matrix"])
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsabench", "images", name, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and f"nsabench images {name}" in done.stdout
