"""Each attack ends as its mark says. The baseline stays right, no process remains, and the page
names the attack unless it is ok.

`FAMILIES` lists the files of this folder that hold the kernels.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Status, Verdict
from nsabench.output import report
from nsabench.running import process, process_tree
from nsabench.running.folder import RunFolder
from nsabench.verdicts.results import Results, assemble
from nsabench.verdicts.tables import write_tables
from tests import forked, main_pass
from tests.attacks.kit import SLOW_S
from tests.checking import a_case, plan_of, rounds
from tests.running.test_hostile import leftovers
from tests.worker.test_sandbox import needs_landlock

FAMILIES = ("answers", "memory", "time_", "judge", "neighbours")
OP = "selection_rows"
BASELINE = "sdpa_gqa"
TIMEOUT_S = 4.0


@dataclass(frozen=True)
class Attack:
    """A kernel's name, its family, and the result that its mark promises."""

    family: str
    name: str
    status: str
    says: str
    device: str


def marked(family):
    """Yield the attacks of a family, read from its source: only workers import the file."""
    tree = ast.parse(file_of(family).read_text())
    words = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in tree.body:
        for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "attack":
                status, says = [
                    words[a.id] if isinstance(a, ast.Name) else ast.literal_eval(a)
                    for a in (*mark.args, ast.Constant(""))
                ][:2]
                given = mark.keywords[0].value if mark.keywords else ast.Constant("cpu")
                device = words[given.id] if isinstance(given, ast.Name) else given.value
                yield Attack(family, node.name, status, says, device)


def file_of(family):
    return Path(__file__).with_name(f"{family}.py")


ATTACKS = [one for family in FAMILIES for one in marked(family)]


def planned(family, *together, device="cpu", timeout_s=TIMEOUT_S):
    """Return a plan with a case for each attack on the device, or for each tuple of names in
    `together`. Each case also has the baseline."""
    attacks = [one for one in marked(family) if one.device in (device, "any")]
    cases = [
        PlannedCase(id=case.id, case=case, implementations=(*names, BASELINE))
        for number, names in enumerate(together or [(one.name,) for one in attacks])
        for case in [case_of(16 + 8 * number, max(timeout_s, *map(patience, names)))]
    ]
    return plan_of(file_of(family), cases, device)


def patience(name):
    """Return the seconds that a call of an attack may need."""
    return 30.0 if any(a.name == name and a.family == "answers" for a in ATTACKS) else 0.0


def case_of(length, timeout_s=TIMEOUT_S):
    shape = {"N": 4, "H": 2, "D": 32, "Dv": 32, "L": length}
    return a_case(OP, shape, timeout_s=timeout_s, timing=rounds(12))


@dataclass(frozen=True)
class Attacked:
    """The results of a run of one family. left: the processes that remain."""

    results: Results
    plan: Plan
    page: str
    left: list[int]

    def of(self, name):
        """Return the record of an attack and the record of its baseline in the same case."""
        [case_id] = [p.id for p in self.plan.cases if name in p.implementations]
        records = {r.implementation: r for r in self.results.records if r.case_id == case_id}
        return records[name], records[BASELINE]


@pytest.fixture(scope="module")
def attacked(request, tmp_path_factory):
    """Return a function that measures the attacks of a family, as far as this session tests
    them."""
    tested = [one for one in ATTACKS if one in _asked(request.session)]
    with pytest.MonkeyPatch.context() as patch:
        # On a busy machine, threads in such short calls mostly wait for each other.
        patch.setenv("OMP_NUM_THREADS", "1")
        # `judge.template` finds a template by its command line, so it must not be forked.
        patch.setattr(process_tree, "start_template", forked.started)
        patch.setattr(process_tree, "TEMPLATE", ("-c", forked.TEMPLATE))
        patch.setattr(process, "READ_TIMEOUT_S", 4.0)
        patch.setattr(process, "MOST_PROCESSES", 60)

        @cache
        def run(family):
            folder = tmp_path_factory.mktemp(family) / "run"
            patch.setenv("NSABENCH_TEST_RUN", str(folder))
            mine = [(one.name,) for one in tested if one.family == family and one.device != "cuda"]
            return measured(planned(family, *mine), folder)

        yield run


def _asked(session):
    found = (getattr(item, "callspec", None) for item in session.items)
    return {spec.params["attack"] for spec in found if spec and "attack" in spec.params}


def measured(plan, folder):
    """Measure each case in a fresh worker, so that no earlier attack affects it."""
    folder.mkdir(parents=True)
    plan.write(folder / "plan.json")
    main_pass.measure(plan, folder, lambda: main_pass.executor_of(plan, folder), sandbox="signals")
    results = assemble(plan.run_id, RunFolder(folder).parts())
    write_tables(results, plan.run_id, folder)
    page = report.write_html(report.Facts.read(folder), folder)
    return Attacked(results, plan, page.read_text(), leftovers())


def test_there_are_enough_of_every_family():
    assert len(ATTACKS) >= 50
    assert len({one.name for one in ATTACKS}) == len(ATTACKS)
    assert {one.family for one in ATTACKS} == set(FAMILIES)


def assert_no_gain(run, attack):
    """Assert that a run has what the mark of an attack promises. Return the records of the attack
    and of the baseline."""
    record, baseline = run.of(attack.name)
    told = f"{record.status}: {record.reason} | {record.notes}"
    assert record.status == attack.status, told
    assert attack.says in f"{record.reason} {record.notes}", told
    assert record.verdict is not Verdict.FASTER, told
    if record.status is not Status.OK:
        assert record.median_ms is None and record.speedup is None
        assert attack.name in run.page
    assert baseline.status is Status.OK, f"{baseline.status}: {baseline.reason}"
    assert run.left == []
    return record, baseline


@needs_landlock
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: f"{one.family}-{one.name}")
def test_it_gains_nothing(attacked, attack):
    if attack.device == "cuda":
        pytest.skip("it needs a CUDA device: tests/gpu/test_attacks_on_cuda.py")
    record, baseline = assert_no_gain(attacked(attack.family), attack)
    if record.status is Status.OK:
        assert record.median_ms > 0.8 * SLOW_S * 1e3, record.notes
        assert baseline.median_ms < 0.5 * SLOW_S * 1e3, record.notes
