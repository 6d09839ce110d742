from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as Xml

from nsabench import labels
from nsabench.files import write_text
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Role
from nsabench.output.standing import is_of_the_user
from nsabench.text import shown
from nsabench.verdicts.results import Results

JUDGED = ("verdict", "best_baseline", "speedup", "speedup_lo", "speedup_hi")
# The suites, in the order of the file.
CANDIDATES, OTHERS, CONTROLS = "candidates", "baselines and others", "controls"


@dataclass(frozen=True)
class Test:
    """A test case of JUnit. It passed if the reasons `failed` and `skipped` are empty. `kind` is
    the kind of the failure, and `time_s` the median time of a call."""

    group: str
    name: str
    failed: str = ""
    skipped: str = ""
    kind: str = ""
    time_s: float | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def list_suites(plan: Plan, results: Results) -> dict[str, list[Test]]:
    """Return the tests of a run by suite. The first has the user's candidates or, if none, all."""
    suites: dict[str, list[Test]] = {CANDIDATES: [], OTHERS: [], CONTROLS: []}
    has_own = any(r.role is Role.CANDIDATE and is_of_the_user(plan, r) for r in results.records)
    for record in results.records:
        suite = CONTROLS if record.role is Role.CONTROL else OTHERS
        if record.role is Role.CANDIDATE and (is_of_the_user(plan, record) or not has_own):
            suite = CANDIDATES
        suites[suite].append(_test_record(record))
    failed = sum(bool(test.failed) for tests in suites.values() for test in tests)
    # In `results.failures`, failures of the whole run come first.
    whole = "; ".join(results.failures[: len(results.failures) - failed])
    suites[CONTROLS].append(Test("run", "every check was shown to work", whole, kind="invalid"))
    return {name: tests for name, tests in suites.items() if tests}


def _test_record(record: Record) -> Test:
    group, name = f"{record.op}.{record.implementation}", labels.case(record)
    if record.role is Role.CONTROL:
        missed = f"it was not caught by {record.caught_by}" if record.caught is Catch.MISSED else ""
        return Test(group, name, missed, kind="missed")
    if record.status in BENIGN:
        was_compared = record.median_ms is not None or record.mae is not None
        skipped = "" if was_compared else f"{record.status}: {record.reason}"
        time_s = None if record.median_ms is None else record.median_ms / 1e3
        judged = {name: str(value) for name in JUDGED if (value := getattr(record, name))}
        return Test(group, name, skipped=skipped, time_s=time_s, properties=judged)
    why = f"{record.status}: {record.diagnosis or record.reason}"
    return Test(group, name, why, kind=record.status.value)


def write_junit(suites: Mapping[str, Sequence[Test]], path: Path) -> Path:
    root = Xml.Element("testsuites")
    for suite_name, tests in suites.items():
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=_make_plain(suite_name),
            tests=str(len(tests)),
            failures=str(sum(bool(test.failed) for test in tests)),
            errors="0",
            skipped=str(sum(bool(test.skipped) for test in tests)),
        )
        for test in tests:
            _add_test(suite, test)
    Xml.indent(root)
    return write_text(path, Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def _add_test(suite: Xml.Element, test: Test) -> None:
    names = {"classname": _make_plain(test.group), "name": _make_plain(test.name)}
    if test.time_s is not None:
        names["time"] = f"{test.time_s:.9f}"
    case = Xml.SubElement(suite, "testcase", names)
    if test.properties:
        properties = Xml.SubElement(case, "properties")
        for name, value in test.properties.items():
            Xml.SubElement(properties, "property", name=name, value=_make_plain(value))
    if test.failed:
        Xml.SubElement(case, "failure", type=test.kind, message=_make_plain(test.failed))
    elif test.skipped:
        Xml.SubElement(case, "skipped", message=_make_plain(test.skipped))


def _make_plain(text: str) -> str:
    return shown(text, lines=True)
