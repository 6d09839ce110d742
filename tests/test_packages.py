"""The metadata of the two packages agree with each other and with the checkout."""

import tomllib
from pathlib import Path
from typing import Any

import nsa_kernels
import pytest
import yaml

import nsabench

ROOT = Path(__file__).parents[1]


def read_project(folder: str) -> dict[str, Any]:
    loaded = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    return dict(loaded["project"])


def test_every_package_is_installed() -> None:
    loaded = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = loaded["tool"]["setuptools"]["packages"]
    there = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in ROOT.glob("nsabench/**/__init__.py")
    }
    assert there - set(listed) == set()


def test_there_is_one_version() -> None:
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


@pytest.mark.parametrize("folder", [".", "kernels"])
def test_a_package_brings_its_licence_and_says_what_it_is(folder: str) -> None:
    project = read_project(folder)
    assert project["license"] == "Apache-2.0"
    assert (ROOT / folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (ROOT / folder / project["readme"]).exists()
    assert project["classifiers"] and project["urls"]
