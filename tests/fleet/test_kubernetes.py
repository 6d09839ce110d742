"""A fleet on Kubernetes: what is written is what two versions of it take, and no more rights than
are needed."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nsabench.cli.fleet import command
from nsabench.errors import UsageError
from nsabench.fleet.kubernetes import name_of
from tests.fleet.test_devices import TINY

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ("1.31.0", "1.37.0")
ASKED = {
    "plain": ["--image", "registry.example/nsabench:cpu", "--gpus", "0", "--device", "cpu"],
    "whole": [
        *("--image", "registry.example/nsabench@sha256:" + "a" * 64),
        *("--key-secret", "nsabench-key", "--queue", "gpus", "--product", "NVIDIA-H200"),
        *("--parallel", "1", "--namespace", "bench"),
    ],
}


def write(folder: Path, *words: str) -> Path:
    matrix = folder / "tiny.yaml"
    matrix.write_text(TINY)
    out = folder / "rows"
    place = ["--shards", "2", "--out", str(out), "--results", "s3://bench/rows"]
    done = CliRunner().invoke(command, ["kubernetes", str(matrix), *place, *words])
    if done.exception is not None:
        raise done.exception
    return out


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("name", ASKED)
def test_it_is_what_was_looked_at(tmp_path: Path, name: str) -> None:
    """The golden files were read by a person. After a change: read, then copy them anew."""
    out = write(tmp_path, *ASKED[name])
    for part in ("base/job.yaml", "base/kustomization.yaml", "overlay/kustomization.yaml"):
        golden = GOLDEN / name / part
        assert (out / part).read_text() == golden.read_text(), golden


@pytest.fixture
def kubernetes_validate() -> ModuleType:
    """Imported when it is needed: it takes seconds, and each process of tests collects all."""
    return importlib.import_module("kubernetes_validate")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ASKED)
def test_kubernetes_takes_it(
    tmp_path: Path, kubernetes_validate: ModuleType, name: str, version: str
) -> None:
    [job] = documents(write(tmp_path, *ASKED[name]) / "base" / "job.yaml")
    kubernetes_validate.validate(job, version, strict=True)
    job["spec"]["completionModes"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("version", VERSIONS)
def test_kustomize_makes_one_of_it(
    tmp_path: Path, kubernetes_validate: ModuleType, version: str
) -> None:
    out = write(tmp_path, *ASKED["whole"])
    made = subprocess.run(
        ["kubectl", "kustomize", out / "overlay"], capture_output=True, text=True, check=True
    ).stdout
    [files, job] = list(yaml.safe_load_all(made))
    for document in (files, job):
        kubernetes_validate.validate(document, version, strict=True)
        assert document["metadata"]["namespace"] == "bench"
    assert files["data"]["tiny.yaml"] == TINY
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["suspend"] and job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    [container] = pod["containers"]
    assert container["image"].startswith("registry.example/nsabench@sha256:")
    assert pod["volumes"][0]["configMap"]["name"] == files["metadata"]["name"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}


def test_it_asks_for_what_restricted_pods_may_have(tmp_path: Path) -> None:
    """The rules of https://kubernetes.io/docs/concepts/security/pod-security-standards/, and a
    root that cannot be written."""
    [job] = documents(write(tmp_path, *ASKED["whole"]) / "base" / "job.yaml")
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container["securityContext"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True
    assert {kind for v in pod["volumes"] for kind in v if kind != "name"} <= {
        "configMap",
        "emptyDir",
        "secret",
    }
    assert pod["automountServiceAccountToken"] is False


def test_exit_codes_mean_what_they_do_elsewhere(tmp_path: Path) -> None:
    [job] = documents(write(tmp_path, *ASKED["plain"]) / "base" / "job.yaml")
    rules = {
        rule["action"]: rule["onExitCodes"]["values"]
        for rule in job["spec"]["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    }
    assert rules == {"FailIndex": [2, 3, 4], "Count": [130, 143]}


def test_names() -> None:
    assert name_of("Rows_H200.2026") == "nsabench-rows-h200-2026"
    assert len(name_of("x" * 100)) == 52


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--namespace", "Not_One"], "is no name for Kubernetes"),
        (["--results", "/a/folder"], "is no bucket"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        write(tmp_path, *ASKED["plain"], *words)
