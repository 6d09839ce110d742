"""The files that conftest.py names exist, so that a renamed file does not change its suite."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_files_of_suites_and_needs_exist(pytestconfig: pytest.Config) -> None:
    suites = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert suites is not None
    names = [*suites.FULL, *(path for need in suites.NEEDS for path in need.paths)]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_attacks_are_in_the_full_suite_and_stand_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        **{"tests/attacks/test_a": "def test_a(): ...", "tests/test_b": "def test_b(): ..."}
    )
    text = (ROOT / "conftest.py").read_text()
    pytester.makeconftest(text)
    pytester.makeini("[pytest]\nmarkers = full")
    done = pytester.runpytest("--collect-only", "-q", "tests/test_b.py", "tests/attacks")
    done.stdout.fnmatch_lines(["tests/attacks/test_a.py::test_a", "tests/test_b.py::test_b"])
    pytester.runpytest("-m", "not full").assert_outcomes(passed=1, deselected=1)
