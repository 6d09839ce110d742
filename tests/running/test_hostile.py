"""Real workers measure hostile implementations. None may end the run or another implementation."""

import psutil
import pytest

from nsabench.model.case import FixedCount
from nsabench.model.vocabulary import Status
from nsabench.running import executor as executors
from nsabench.running import process, process_tree
from nsabench.running.policy import next_jobs
from nsabench.running.process import HEAD_BYTES, TAIL_BYTES
from tests import main_pass
from tests.running.conftest import plan_of_cases
from tests.runs import log_of, retimed


def measure(make_plan, tmp_path, hostile, *, timeout_s=3.0):
    plan = make_plan([hostile, "sdpa_gqa"], timeout_s=timeout_s)
    [state] = run(plan, tmp_path)
    return {observation.implementation: observation for observation in state.observations}


def run(plan, folder):
    with main_pass.executor_of(plan, folder) as executor:
        states = main_pass.measure(plan, folder, executor)
    assert leftovers() == []
    return states


def leftovers():
    """Return live processes of this session, except those from which workers are forked."""
    found = []
    for candidate in psutil.process_iter():
        try:
            marked = candidate.environ().get(process_tree.MARK) == process_tree.mark
            ours = candidate.pid in process_tree.template_pids()
            if marked and not ours and candidate.status() != psutil.STATUS_ZOMBIE:
                found.append(candidate.pid)
        except psutil.Error:
            continue
    return found


HOSTILE = {
    "well_behaved": (Status.OK, ""),
    "loop_in_c_that_ignores_term": (Status.TIMEOUT, "no answer within 3 s"),
    "segfault": (Status.CRASHED, "SIGSEGV"),
    "sys_exit": (Status.CRASHED, "sys.exit(0)"),
    "memory_error": (Status.OUT_OF_MEMORY, "MemoryError: no more"),
    "raises": (Status.CRASHED, "ValueError: not today (hostile.py:"),
    "keyboard_interrupt": (Status.CRASHED, "KeyboardInterrupt"),
    "unsupported": (Status.UNSUPPORTED, "head dimensions over 8"),
    "wrong_shape": (Status.WRONG, "shape (4, 2, 33)"),
    "returns_no_tensor": (Status.WRONG, "a list, not a plain torch.Tensor"),
    "nan": (Status.WRONG, "are NaN"),
    "prints_to_stdout": (Status.OK, ""),
    "mlir_assertion": (Status.CRASHED, "only integers and floats have a bitwidth"),
    "fails_only_when_timed": (Status.CRASHED, "ValueError: tired"),
    "dies_only_when_timed": (Status.CRASHED, "SIGABRT"),
    "blames_the_baseline": (Status.CRASHED, "not me"),
    "forges_a_refusal": (Status.CRASHED, "a refusal in the middle of measuring"),
    "dies_before_any_call_it_says": (Status.CRASHED, "its process went back to 'inputs'"),
    "delivers_for_another": (Status.CRASHED, "'sdpa_gqa', which is not measured here"),
    "delivers_for_another_op": (Status.CRASHED, "for the op 'decode_dense'"),
    "delivers_for_a_stranger": (Status.CRASHED, "'somebody', which is not measured here"),
    "reports_steps_for_ever": (Status.CRASHED, "reported more than"),
    "asks_for_hours": (Status.CRASHED, "asked for more time than its work can take"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Measure each hostile implementation beside a baseline, in its own case."""
    plan = plan_of_cases(*((name, "sdpa_gqa") for name in HOSTILE))
    states = run(plan, tmp_path_factory.mktemp("hostile"))
    return {
        name: {o.implementation: o for o in state.observations}
        for name, state in zip(HOSTILE, states, strict=True)
    }


@pytest.mark.timeout(900)  # the first test measures all of them
@pytest.mark.parametrize("hostile", HOSTILE)
def test_one_hostile_implementation(found, hostile):
    observations = found[hostile]
    status, reason = HOSTILE[hostile]
    assert observations[hostile].status == status, observations[hostile].reason
    assert reason in observations[hostile].reason
    if status is not Status.OK:
        assert observations[hostile].samples.time_ms == []
    assert observations["sdpa_gqa"].status == Status.OK
    assert len(observations["sdpa_gqa"].samples.time_ms) >= 10


@pytest.mark.parametrize(
    "hostile", ["spoils_the_next_case", "holds_up_the_next_case", "refuses_the_next_case"]
)
def test_what_a_case_leaves_behind_is_no_fault_of_the_next(make_plan, tmp_path, hostile):
    plan = make_plan([hostile, "sdpa_gqa"], lengths=(16, 32))
    first, *others = run(plan, tmp_path)
    assert {o.status for e in (first, *others) for o in e.observations} == {Status.OK}
    assert [o.notes for o in first.observations] == [[], []]
    notes = [note for e in others for o in e.observations for note in o.notes]
    assert len(notes) == 2
    assert all("measured again, since" in note for note in notes)


def test_outputs_to_check_are_bounded(make_plan, tmp_path, monkeypatch):
    """The checker's time is not the worker's, so the worker would never time out."""
    monkeypatch.setattr(executors, "MOST_DELIVERIES", 300)
    observations = measure(make_plan, tmp_path, "delivers_for_ever", timeout_s=60)
    assert observations["delivers_for_ever"].status is Status.CRASHED
    assert "delivered more than" in observations["delivers_for_ever"].reason
    assert observations["sdpa_gqa"].status is Status.OK


def test_a_job_of_many_rounds_may_deliver_the_outputs_of_each(make_plan):
    plan = make_plan(["sdpa_gqa"])
    case = retimed(plan.cases[0], stopping=FixedCount(kind="fixed_count", rounds=10_000))
    [job] = next_jobs(plan.model_copy(update={"cases": [case]}), log_of(plan))
    job = job.model_copy(update={"implementations": ("sdpa_gqa",) * 91})
    assert executors.count_deliveries(job) > 2 * 91 * 10_000


@pytest.fixture
def one_gib(monkeypatch):
    free = psutil.virtual_memory()._replace(available=1 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(process, "MEMORY_SHARE", 1.0)


@pytest.mark.usefixtures("one_gib")
def test_host_memory_is_bounded(make_plan, tmp_path):
    observations = measure(make_plan, tmp_path, "out_of_memory", timeout_s=60)
    assert observations["out_of_memory"].status == Status.OUT_OF_MEMORY
    assert "1.0 GiB" in observations["out_of_memory"].reason
    assert observations["sdpa_gqa"].status == Status.OK


@pytest.mark.usefixtures("one_gib")
def test_memory_that_processes_share_counts_once(make_plan, tmp_path):
    observations = measure(make_plan, tmp_path, "children_share_memory", timeout_s=60)
    assert observations["children_share_memory"].status == Status.OK
    assert any("6 process(es) behind" in n for n in observations["children_share_memory"].notes)


def test_much_stderr_is_bounded(make_plan, tmp_path):
    observations = measure(make_plan, tmp_path, "much_stderr", timeout_s=60)
    assert observations["much_stderr"].status == Status.CRASHED
    [log] = (tmp_path / "logs").iterdir()
    attempts = 2  # beside the baseline, then alone
    limit = attempts * (HEAD_BYTES + TAIL_BYTES + (1 << 16))
    assert "bytes left out" in log.read_text()
    assert log.stat().st_size < limit


def test_other_children_of_this_process_are_left_alone(make_plan, tmp_path):
    with psutil.Popen(["sleep", "60"]) as ours:
        measure(make_plan, tmp_path, "segfault")
        alive = ours.is_running() and ours.status() != psutil.STATUS_ZOMBIE
        ours.kill()
    assert alive
