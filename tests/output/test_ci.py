"""Output of runs for a CI system."""

from pathlib import Path
from xml.etree import ElementTree as Xml

from nsabench.output import ci
from nsabench.output.report import Facts
from tests.output.report.conftest import HOSTILE
from tests.output.report.conftest import make_run as make_nasty_run
from tests.runs import Made, make_run


def test_a_test_a_record_and_as_many_failures_as_the_run_has(tmp_path: Path) -> None:
    results = Facts.read(make_nasty_run(tmp_path / "run")).results
    tests = ci.list_tests(results)
    assert len(tests) == len(results.records) + 1
    failed = [test for test in tests if test.failed]
    assert len(failed) == len(results.failures) == 6
    assert {test.group for test in failed} == {"selection_rows.nasty_one"}
    path = ci.write_junit(tests, tmp_path / "out" / "junit.xml", "a run")
    suite = Xml.parse(path).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == (str(len(tests)), "6")
    messages = [failure.get("message", "") for failure in suite.iter("failure")]
    assert all(HOSTILE in message for message in messages), "it is text, and whole"


def test_what_xml_cannot_hold_is_written_out(tmp_path: Path) -> None:
    test = ci.Test("a", "b", failed="nul \x00 escape \x1b[31m", kind="crashed")
    suite = Xml.parse(ci.write_junit([test], tmp_path / "j.xml", "x")).getroot()[0]
    assert suite[0][0].get("message") == r"nul \x00 escape \x1b[31m"


def test_a_control_that_got_away_fails(tmp_path: Path) -> None:
    results = Facts.read(make_run(tmp_path / "run", Made(control_caught=False))).results
    assert {test.kind for test in ci.list_tests(results) if test.failed} == {"missed"}
