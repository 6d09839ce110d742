"""The workflow for rented GPUs: what comes after the GPU is run as it stands there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.cli.all import command as all_
from nsabench.evidence.manifest import seal
from nsabench.signing import Signer
from tests.published import whole_run
from tests.runs import Made, make_run
from tests.workflows import lint

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "docs" / "how-to" / "rented-gpu.yml"
CONFIG = "runtime:\n  sel_triton_min_L: 4096  # as it was\n"


def steps() -> dict[str, dict[str, Any]]:
    return {
        step["name"]: step for job in jobs().values() for step in job["steps"] if "name" in step
    }


def jobs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return found


def after_the_gpu(repository: Path, run: Path) -> tuple[str, str]:
    """Run the steps in a repository. Returns what the summary says, and the outputs."""
    place = repository / "fleets" / "ci" / "whole"
    shutil.copytree(run, place)
    (repository / "config.yaml").write_text(CONFIG)
    subprocess.run(["git", "init", "--quiet"], cwd=repository, check=True)
    variables = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "GITHUB_STEP_SUMMARY": str(repository / "summary.md"),
        "GITHUB_OUTPUT": str(repository / "output"),
        **{k: str(v) for k, v in yaml.safe_load(WORKFLOW.read_text())["env"].items()},
    }
    for name in ("Verify", "Propose"):
        script = steps()[name]["run"]
        # As the runner does it: https://docs.github.com/actions, `shell`.
        subprocess.run(["bash", "-e", "-c", script], cwd=repository, env=variables, check=True)
    return (repository / "summary.md").read_text(), (repository / "output").read_text()


def test_a_threshold_is_proposed_as_a_patch(tmp_path: Path) -> None:
    signer = Signer(Ed25519PrivateKey.generate(), ephemeral=False)
    run = make_run(tmp_path / "run", Made(ratio=lambda _: 2.0), signer=signer)
    seal(run, signer)
    (tmp_path / "repository").mkdir()
    summary, output = after_the_gpu(tmp_path / "repository", run)
    assert "patched=true" in output and "## Thresholds" in summary
    config = yaml.safe_load((tmp_path / "repository" / "config.yaml").read_text())
    assert config["runtime"]["sel_triton_min_L"] == 64


def test_a_published_run_without_one_says_why_nothing_is_proposed(tmp_path: Path) -> None:
    (tmp_path / "measured").mkdir()
    summary, output = after_the_gpu(tmp_path, whole_run(tmp_path / "measured"))
    assert "patched=false" in output and "Nothing is proposed:" in summary
    assert "none of these ops is decided by a selected length" in summary
    assert (tmp_path / "config.yaml").read_text() == CONFIG


def test_a_run_that_was_altered_ends_it(tmp_path: Path) -> None:
    altered = whole_run(tmp_path)
    with (altered / "journal.jsonl").open("a") as journal:
        journal.write("\n")
    (tmp_path / "repository").mkdir()
    with pytest.raises(subprocess.CalledProcessError):
        after_the_gpu(tmp_path / "repository", altered)
    assert not (tmp_path / "repository" / "summary.md").exists()


def test_where_kernels_run_nothing_can_be_written() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs().items() if "permissions" in job] == ["propose"]
    kept = [
        step.get("with", {}).get("persist-credentials")
        for job in jobs().values()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert kept == [False] * 3
    assert not any("nsabench " in step.get("run", "") for step in jobs()["propose"]["steps"])


def test_the_pull_request_has_the_threshold_and_nothing_else(tmp_path: Path) -> None:
    """Whatever else the patch would change."""
    origin, repository, tools = (tmp_path / name for name in ("origin", "repository", "tools"))
    for folder in (origin, repository, tools, repository / ".measured"):
        folder.mkdir()
    (tools / "gh").write_text('#!/bin/sh\necho "$@" >> "$CALLS"\n')
    (tools / "gh").chmod(0o755)
    variables = {
        **os.environ,
        "PATH": os.pathsep.join([str(tools), os.environ["PATH"]]),
        "CALLS": str(tmp_path / "calls"),
        "GITHUB_RUN_ID": "7",
        **{k: str(v) for k, v in yaml.safe_load(WORKFLOW.read_text())["env"].items()},
    }

    def git(*words: str, cwd: Path = repository) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *who, *words], cwd=cwd, check=True, capture_output=True, text=True
        )
        return done.stdout

    git("init", "--quiet", "--bare", cwd=origin)
    git("init", "--quiet")
    git("remote", "add", "origin", str(origin))
    (repository / "config.yaml").write_text(CONFIG)
    (repository / "setup.py").write_text("x = 1\n")
    git("add", "config.yaml", "setup.py")
    git("commit", "--quiet", "-m", "as it was")
    (repository / "config.yaml").write_text(CONFIG.replace("4096", "64"))
    (repository / "setup.py").write_text("x = 2\n")
    (repository / ".measured" / "thresholds.patch").write_text(git("diff"))
    git("checkout", "--quiet", ".")
    subprocess.run(
        ["bash", "-e", "-c", steps()["Pull request"]["run"]],
        cwd=repository,
        env=variables,
        check=True,
    )
    assert git("show", "thresholds-7:config.yaml", cwd=origin) == CONFIG.replace("4096", "64")
    assert git("show", "thresholds-7:setup.py", cwd=origin) == "x = 1\n"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "auth setup-git" and calls[1].startswith("pr create --title")
    assert calls[1].endswith("--body-file .measured/fleets/ci/whole/selection_report.md")


def test_actionlint_finds_nothing() -> None:
    assert lint(WORKFLOW.read_text()) == []


def test_it_measures_in_one_of_two_ways() -> None:
    conditions = [step["if"] for step in steps().values() if "inputs.runner" in step.get("if", "")]
    assert conditions == ["inputs.runner != 'ubuntu-latest'", "inputs.runner == 'ubuntu-latest'"]


def test_what_it_calls_is_there() -> None:
    script = steps()["Measure on rented GPUs"]["run"]
    words = [line.strip().split()[:3] for line in script.splitlines() if "nsabench fleet" in line]
    assert [word[:3] for word in words] == [
        ["nsabench", "fleet", "modal"],
        ["nsabench", "fleet", "collect"],
    ]
    own = steps()["Measure on GPUs of the runner"]["run"]
    options = {option for parameter in all_.params for option in parameter.opts}
    assert {word for word in own.split() if word.startswith("--")} <= options
    for name in (
        *("Measure on GPUs of the runner", "Measure on rented GPUs"),
        *("Verify", "Propose", "Pull request"),
    ):
        subprocess.run(["bash", "-n", "-c", steps()[name]["run"]], check=True)
