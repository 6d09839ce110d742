"""Output of runs for a CI system."""

from xml.etree import ElementTree as Xml

from nsabench.output import ci
from nsabench.output.report import Facts
from tests.output.report.conftest import HOSTILE
from tests.output.report.conftest import make_run as make_nasty_run
from tests.runs import Made, make_run


def test_a_test_a_record_and_as_many_failures_as_the_run_has(tmp_path):
    facts = Facts.read(make_nasty_run(tmp_path / "run"))
    results, suites = facts.results, ci.list_suites(facts.plan, facts.results)
    tests = [test for suite in suites.values() for test in suite]
    assert len(tests) == len(results.records) + 1
    failed = [test for test in tests if test.failed]
    assert len(failed) == len(results.failures) == 6
    assert {test.group for test in failed} == {"selection_rows.nasty_one"}
    root = Xml.parse(ci.write_junit(suites, tmp_path / "out" / "junit.xml")).getroot()
    assert sum(int(suite.get("tests", 0)) for suite in root) == len(tests)
    assert sum(int(suite.get("failures", 0)) for suite in root) == 6
    messages = [failure.get("message", "") for failure in root.iter("failure")]
    assert all(HOSTILE in message for message in messages), "it is text, and whole"


def test_what_xml_cannot_hold_is_written_out(tmp_path):
    test = ci.Test("a", "b", failed="nul \x00 escape \x1b[31m", kind="crashed")
    suite = Xml.parse(ci.write_junit({"x": [test]}, tmp_path / "j.xml")).getroot()[0]
    assert suite[0][0].get("message") == r"nul \x00 escape \x1b[31m"


def test_a_control_that_got_away_fails(tmp_path):
    facts = Facts.read(make_run(tmp_path / "run", Made(control_caught=False)))
    suites = ci.list_suites(facts.plan, facts.results)
    assert {t.kind for tests in suites.values() for t in tests if t.failed} == {"missed"}
    assert not any(test.failed for test in suites["candidates"])


def test_candidates_have_times_and_controls_a_suite_of_their_own(tmp_path):
    facts = Facts.read(make_run(tmp_path / "run", Made(ratio=lambda length: 2.0)))
    path = ci.write_junit(ci.list_suites(facts.plan, facts.results), tmp_path / "j.xml")
    first, *_, last = Xml.parse(path).getroot()
    assert (first.get("name"), last.get("name")) == ("candidates", "controls")
    candidates = {f"{r.op}.{r.implementation}" for r in facts.candidates}
    assert {case.get("classname") for case in first} == candidates
    assert all(float(case.get("time", 0)) > 0 for case in first)
    controls = {f"{r.op}.{r.implementation}" for r in facts.controls}
    assert {case.get("classname") for case in last} == controls | {"run"}
