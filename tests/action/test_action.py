"""The composite action for GitHub. Bash runs its step `Measure` as a runner would."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

import yaml

from tests.cli.conftest import TINY
from tests.workflows import lint

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}

WRONG = """
import beside
from nsabench import implementation


@implementation(op="selection_rows", name="mine", devices=("cuda", "cpu"))
def mine(q, k, v, *, sm_scale):
    return v[:, :1].expand(-1, q.shape[1], -1).contiguous()
"""


TRACE = "from pathlib import Path\nPath({!r}).touch()\n"


def test_inputs_reach_the_shell_through_variables_alone():
    """An input inside a script could run any command, because a script is code."""
    for step in STEPS.values():
        assert "${{" not in step["run"]
        for value in step.get("env", {}).values():
            [name] = re.findall(r"\$\{\{ inputs\.(\w+) \}\}", value)
            assert name in ACTION["inputs"]
    for one in ACTION["inputs"].values():
        assert one["description"] and isinstance(one["default"], str)


def test_the_example_workflow_is_one():
    example = (ROOT / "docs" / "how-to" / "gate.yml").read_text()
    assert lint(example) == []
    broken = example.replace("runs-on:", "run-on:", 1)
    assert broken != example and any("run-on" in message for message in lint(broken))
    workflow = yaml.safe_load(example)
    used = [step for job in workflow["jobs"].values() for step in job["steps"] if "with" in step]
    of_ours = [step["with"] for step in used if "nsabench@" in step.get("uses", "")]
    assert of_ours
    for given in of_ours:
        assert given.keys() <= ACTION["inputs"].keys()


def test_a_wrong_kernel_fails_the_job_and_is_named(tmp_path):
    (tmp_path / "mine.py").write_text(WRONG)
    (tmp_path / "beside.py").touch()
    # A pull request can add files that have the names of modules.
    for name in ("copy", "json", "runpy", "numpy", "torch", "nsabench"):
        (tmp_path / f"{name}.py").write_text(TRACE.format(str(tmp_path / "trace")))
    (tmp_path / "tiny.yaml").write_text(TINY.replace("rows_group]", "mine]"))
    # The action's folder on a runner after its first step.
    place = tmp_path / "action"
    (place / ".venv" / "bin").mkdir(parents=True)
    (place / ".venv" / "bin" / "nsabench").symlink_to(Path(sys.executable).parent / "nsabench")
    env = {
        **os.environ,
        "GITHUB_ACTION_PATH": str(place),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "MATRICES": "tiny.yaml",
        "KERNELS": "mine.py",
        "ONLY": "mine",
        "DEVICE": "cpu",
        "WHERE": "L>=16 and L<24",
        "OUT": "run",
    }
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", STEPS["Measure"]["run"]],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert not (tmp_path / "trace").exists(), "a file beside the kernel ran outside the sandbox"
    suites = {suite.get("name"): suite for suite in Xml.parse(tmp_path / "run.xml").getroot()}
    [failed] = [case for case in suites["candidates"] if case.find("failure") is not None]
    assert failed.get("classname") == "selection_rows.mine"
    assert [suites["candidates"].get(key) for key in ("tests", "failures")] == ["1", "1"]
    assert suites["controls"].get("failures") == "0"
    assert int(suites["controls"].get("tests", "0")) > 10
    assert "# Selection report" in (tmp_path / "summary.md").read_text()
