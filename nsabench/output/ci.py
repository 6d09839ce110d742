from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as Xml

from nsabench import labels
from nsabench.files import write_text
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Role
from nsabench.text import shown
from nsabench.verdicts.results import Results


@dataclass(frozen=True)
class Test:
    """A test case of JUnit. It passed if `failed` and `skipped` are empty. kind: of failure."""

    group: str
    name: str
    failed: str = ""
    skipped: str = ""
    kind: str = ""


def list_tests(results: Results) -> list[Test]:
    tests = [_test_record(record) for record in results.records]
    of_all = results.failures
    # Failures of the whole run come first.
    of_records = sum(bool(test.failed) for test in tests)
    whole = "; ".join(of_all[: len(of_all) - of_records])
    return [Test("run", "every check was put to the proof", whole, kind="invalid"), *tests]


def _test_record(record: Record) -> Test:
    group, name = f"{record.op}.{record.implementation}", labels.case(record)
    if record.role is Role.CONTROL:
        missed = f"it was not caught by {record.caught_by}" if record.caught is Catch.MISSED else ""
        return Test(group, name, missed, kind="missed")
    if record.status in BENIGN:
        was_compared = record.median_ms is not None or record.mae is not None
        skipped = "" if was_compared else f"{record.status}: {record.reason}"
        return Test(group, name, skipped=skipped)
    why = f"{record.status}: {record.diagnosis or record.reason}"
    return Test(group, name, why, kind=record.status.value)


def write_junit(tests: Sequence[Test], path: Path, name: str) -> Path:
    """Write one suite as JUnit XML. Raises `UsageError` if the path cannot be written."""
    suite = Xml.Element(
        "testsuite",
        name=_make_plain(name),
        tests=str(len(tests)),
        failures=str(sum(bool(test.failed) for test in tests)),
        errors="0",
        skipped=str(sum(bool(test.skipped) for test in tests)),
    )
    for test in tests:
        names = {"classname": _make_plain(test.group), "name": _make_plain(test.name)}
        case = Xml.SubElement(suite, "testcase", names)
        if test.failed:
            Xml.SubElement(case, "failure", type=test.kind, message=_make_plain(test.failed))
        elif test.skipped:
            Xml.SubElement(case, "skipped", message=_make_plain(test.skipped))
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return write_text(path, Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def _make_plain(text: str) -> str:
    return shown(text, lines=True)
