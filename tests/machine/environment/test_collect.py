"""Collect the whole environment of this machine, whatever it is."""

import os
import subprocess
import sys

import pytest

from nsabench.machine.environment.collect import collect
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.provenance import read_container
from nsabench.machine.environment.torch_probe import describe
from nsabench.model.description import Described


def test_a_run_on_the_cpu_is_complete(quick):
    pytest.importorskip("torch")
    environment = collect(describe("cpu"), quick)
    assert environment.complete, environment.absent
    assert environment.run.device == "cpu"
    assert Environment.model_validate_json(environment.model_dump_json()) == environment


def test_missing_torch_makes_it_incomplete(quick):
    absent = {"software.torch": "broken"}
    told = Described(software={}, device={"type": "cpu"}, absent=absent)
    environment = collect(told, quick)
    assert not environment.complete
    assert environment.absent["software.torch"] == "broken"


def test_a_cuda_run_without_a_known_device_is_incomplete(quick):
    told = Described(software={"torch": "2.11.0"}, device={"type": "cuda"})
    environment = collect(told, quick.model_copy(update={"device": "cuda"}))
    assert not environment.complete
    assert "gpus" in environment.absent


def test_an_empty_machine_is_no_failure(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    monkeypatch.setattr(os, "environ", {"PATH": str(tmp_path)})
    environment = collect(None, None)
    assert environment.run.commits == {}
    assert environment.absent["run.commits.nsabench"] == "git is not installed"


def test_collecting_imports_no_torch():
    code = (
        "import sys; from nsabench.machine.environment.collect import collect; "
        "collect(None, None); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'triton')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("variables", "file", "runtime"),
    [
        ({}, None, None),
        ({}, ".dockerenv", "docker"),
        ({}, "run/.containerenv", "podman"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ".dockerenv", "kubernetes"),
        ({"APPTAINER_CONTAINER": "x.sif"}, None, "apptainer"),
        ({"container": "lxc"}, None, "lxc"),
    ],
)
def test_container(tmp_path, variables, file, runtime):
    if file is not None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    absent = {}
    container = read_container(variables, absent, tmp_path)
    assert container.runtime == runtime
    assert ("container.image_digest" in absent) == (runtime is not None)


def test_an_image_is_known_by_what_its_starter_says(tmp_path):
    told = {"NSABENCH_IMAGE_DIGEST": "sha256:1", "NSABENCH_COMBO": "torch-2.8", "container": "x"}
    absent = {}
    container = read_container(told, absent, tmp_path)
    assert (container.image_digest, container.combo) == ("sha256:1", "torch-2.8")
    assert absent == {}
