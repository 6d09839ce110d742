"""The metadata of the packages agree with the checkout, and conftest.py names files that exist."""

import tomllib
from pathlib import Path

import nsa_kernels
import yaml

import nsabench

ROOT = Path(__file__).parents[1]


def read_project(folder):
    loaded = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    return dict(loaded["project"])


def test_every_package_is_installed():
    loaded = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = loaded["tool"]["setuptools"]["packages"]
    there = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in ROOT.glob("nsabench/**/__init__.py")
    }
    assert there - set(listed) == set()


def test_there_is_one_version():
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = next(line for line in changes.splitlines() if line.startswith("## [0"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {
        read_project(".")["version"],
        read_project("kernels")["version"],
        nsabench.__version__,
        nsa_kernels.__version__,
        citation["version"],
        newest.partition("[")[2].partition("]")[0],
    } == {nsabench.__version__}
    assert newest.endswith(str(citation["date-released"]))


def test_files_of_suites_and_needs_exist(pytestconfig):
    suites = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert suites is not None
    names = [*suites.FULL, *(path for need in suites.NEEDS for path in need.paths)]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_attacks_are_in_the_full_suite_and_stand_first(pytester):
    pytester.makepyfile(
        **{"tests/attacks/test_a": "def test_a(): ...", "tests/test_b": "def test_b(): ..."}
    )
    text = (ROOT / "conftest.py").read_text()
    pytester.makeconftest(text)
    pytester.makeini("[pytest]\nmarkers = full")
    done = pytester.runpytest("--collect-only", "-q", "tests/test_b.py", "tests/attacks")
    done.stdout.fnmatch_lines(["tests/attacks/test_a.py::test_a", "tests/test_b.py::test_b"])
    pytester.runpytest("-m", "not full").assert_outcomes(passed=1)
