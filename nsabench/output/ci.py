"""What a CI system reads of a run and of a comparison: JUnit XML, and annotations of GitHub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as Xml

from nsabench.assessment import labels
from nsabench.assessment.caution import beside
from nsabench.assessment.failures import failures
from nsabench.assessment.results import Results
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Regime, Role
from nsabench.output.compare import Comparison
from nsabench.output.compare.markdown import standing
from nsabench.output.compare.shift import Shift
from nsabench.output.report.files import replace
from nsabench.text import shown

MOST = 10  # annotations: GitHub shows no more of a step


@dataclass(frozen=True)
class Test:
    """What JUnit calls a test case. `failed` and `skipped` say why; both empty: it passed."""

    group: str
    name: str
    failed: str = ""
    skipped: str = ""
    kind: str = ""  # of the failure, in a word
    said: str = ""  # what it prints: verdicts and ratios


def of_run(results: Results) -> list[Test]:
    """A test an implementation and case, and one for the run as a whole. A control passes when it
    was caught, or could not cheat."""
    tests = [_of_record(record) for record in results.records]
    told = sum(bool(test.failed) for test in tests)
    of_all = failures(results)
    # Those that no record stands for come first.
    whole = "; ".join(of_all[: len(of_all) - told])
    return [Test("run", "every check was put to the proof", whole, kind="invalid"), *tests]


def _of_record(record: Record) -> Test:
    group, name = f"{record.op}.{record.implementation}", labels.case(record)
    if record.role is Role.CONTROL:
        missed = f"it was not caught by {record.caught_by}" if record.caught is Catch.MISSED else ""
        return Test(group, name, missed, kind="missed")
    if record.status in BENIGN:
        declined = f"{record.status}: {record.reason}" if record.median_ms is None else ""
        skipped = declined if record.mae is None else ""
        return Test(group, name, skipped=skipped, said="\n".join(_judged(record)))
    why = f"{record.status}: {record.diagnosis or record.reason}"
    return Test(group, name, why, kind=record.status.value)


def _judged(record: Record) -> Iterator[str]:
    """`device: faster, 4.20 times as fast as masked_sdpa; no specialised baseline`, by regime."""
    for regime in Regime:
        judged = record.judged_in(regime)
        if judged is None:
            continue
        verdict, ratio = judged
        of = record.best_baseline if regime is record.regime else record.queue_best_baseline
        said = [f"{regime}: {verdict}"]
        said += [f", {ratio:.2f} times as fast as {of}"] if ratio is not None else []
        bear = beside(record, regime)
        yield "".join([*said, f"; {bear}" if bear else ""])


def of_comparison(comparison: Comparison, *, slower: bool) -> list[Test]:
    """A test a cell and later run, and one more where it was called in the queue, too. slower:
    whether a candidate that lost time has failed."""
    tests = [
        Test("runs", side.name, side.objection if slower else "", kind="invalid")
        for side in comparison.sides
    ]
    for later, side in enumerate(comparison.later):
        broke = {id(cell) for cell, _ in comparison.broken(later)}
        lost = {id(cell) for cell, _ in comparison.slower(later)} if slower else set()
        in_queue = comparison.slower_in_queue(later) if slower else []
        lost_in_queue = {id(cell) for cell, _ in in_queue}
        undecided = comparison.undecided(later) if slower else ""
        tests.append(Test("runs", f"times of {side.name}", undecided, kind="undecided"))
        less = {paid.name for paid, _ in comparison.pays_less(later)} if slower else set()
        for paid in comparison.payments:
            lost_since = f"{paid.said(later + 1)}, and before: {paid.said(0)}"
            fallen = lost_since if paid.name in less else ""
            tests.append(Test("pays", f"{paid.name} in {side.name}", fallen, kind="pays less"))
        for cell in comparison.cells:
            shift, name = cell.shifts[later], f"{cell.label} in {side.name}"
            before, after = cell.measurements[0].status, cell.measurements[later + 1].status
            if id(cell) in broke:
                why, kind = f"{before} became {after}", "broke"
            elif id(cell) in lost:
                why, kind = _of_the_speed(shift, comparison), "slower"
            else:
                why, kind = "", ""
            skipped = "" if why or shift.ratio is not None else shift.why or "not compared"
            measured = cell.measurements[later + 1]
            said = standing(measured) if measured.speedup is not None else ""
            tests.append(Test(cell.implementation, name, why, skipped, kind, said))
            queued = cell.in_queue[later] if cell.in_queue else None
            if queued is not None:
                why = _of_the_speed(queued, comparison) if id(cell) in lost_in_queue else ""
                skipped = "" if why or queued.ratio is not None else queued.why
                name = f"{name}, in the queue"
                tests.append(Test(cell.implementation, name, why, skipped, "slower" if why else ""))
    return tests


def _of_the_speed(shift: Shift, comparison: Comparison) -> str:
    return f"{shift.ratio:.3f} of the speed of {comparison.first.name}"


def write_junit(tests: Sequence[Test], path: Path, name: str) -> Path:
    """JUnit XML, one suite. Raises `UsageError` for a path that cannot be."""
    suite = Xml.Element(
        "testsuite",
        name=_plain(name),
        tests=str(len(tests)),
        failures=str(sum(bool(test.failed) for test in tests)),
        errors="0",
        skipped=str(sum(bool(test.skipped) for test in tests)),
    )
    for test in tests:
        case = Xml.SubElement(
            suite, "testcase", classname=_plain(test.group), name=_plain(test.name)
        )
        if test.failed:
            Xml.SubElement(case, "failure", type=test.kind, message=_plain(test.failed))
        elif test.skipped:
            Xml.SubElement(case, "skipped", message=_plain(test.skipped))
        if test.said:
            Xml.SubElement(case, "system-out").text = _plain(test.said)
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return replace(path, Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def remarks(tests: Iterable[Test], kernels: str = "") -> Iterator[str]:
    """Commands of GitHub's, a line each, that show what failed beside the code. kernels: the user's
    file, as the repository knows it."""
    failed = [test for test in tests if test.failed]
    for test in failed[:MOST]:
        where = {"file": kernels} if kernels else {}
        yield _command({**where, "title": f"{test.group} {test.name}"}, test.failed)
    if len(failed) > MOST:
        yield _command({}, f"and {len(failed) - MOST} more failed: see the log")


def _command(properties: Mapping[str, str], message: str) -> str:
    said = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::error{' ' if said else ''}{said}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return shown(text)


def _plain(text: str) -> str:
    """Without what XML cannot hold: a kernel's message may be anything."""
    return shown(text, lines=True)
