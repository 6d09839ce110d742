"""`nsabench all`, end to end on the CPU: files, exit codes, kill and resume."""

import json
import os
import re
import shutil
import signal
import time
from collections import Counter

import psutil
import pyarrow.parquet as pq
import pytest

from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose, Regime, Status, Verdict
from nsabench.running import log
from nsabench.verdicts.tables import read_records
from tests import forked
from tests.cli.conftest import complete, start
from tests.commands import invoke
from tests.runs import Made, make_run


def records(run):
    return pq.read_table(run / "records.parquet").to_pylist()


def content(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def cells(run):
    return {(r["case_id"], r["implementation"]) for r in records(run)}


def planned(run):
    plan = Plan.read(run / "plan.json")
    return {(c.id, name) for c in plan.cases for name in c.implementations}


@pytest.fixture
def run(tmp_path, finished_run):
    """Return a copy of the finished run that a test may change."""
    return shutil.copytree(finished_run, tmp_path / "run")


def test_a_run_holds_what_the_plan_says(finished_run):
    assert cells(finished_run) == planned(finished_run)
    environment = json.loads((finished_run / "environment.json").read_text())
    assert environment["complete"] is True
    assert environment["software"]["torch"]
    held = log.read(finished_run / "log.jsonl")
    assert held.sessions[0].distributions["nsa-kernels"]
    assert 0 < held.measuring_s < held.wall_s


def test_samples_are_interleaved_in_changing_order(finished_run):
    samples = pq.read_table(finished_run / "samples.parquet").to_pylist()
    case_id = samples[0]["case_id"]
    rounds = {}
    for s in samples:
        names = ("sdpa_gqa", "bmm_softmax")
        if (s["case_id"], s["regime"]) == (case_id, "device") and s["implementation"] in names:
            rounds.setdefault(s["round"], []).append((s["order"], s["implementation"]))
    assert len(rounds) == 12
    assert all(len(pair) == 2 for pair in rounds.values())
    assert len({min(pair)[1] for pair in rounds.values()}) == 2


def test_an_interpreted_candidate_is_checked_and_not_timed(finished_run):
    found = [r for r in records(finished_run) if r["implementation"] == "rows_group"]
    assert {r["status"] for r in found} == {"ok"}
    compared = pq.read_table(finished_run / "comparisons.parquet").to_pylist()
    own = [c for c in compared if c["implementation"] == "rows_group"]
    assert {(c["ratio"], c["median_ms"]) for c in own} == {(None, None)}
    assert all(r["reason"] for r in records(finished_run) if r["status"] != "ok")
    assert all("interpreter is not timed" in r["notes"] for r in found)
    assert all(r["config"] for r in found)


def got_away(run):
    """Return the controls that were neither caught nor declined, each with the check that must
    catch it."""
    controls = [r for r in records(run) if r["role"] == "control"]
    assert "caught" in {r["caught"] for r in controls}
    return {
        r["implementation"]: r["caught_by"]
        for r in controls
        if r["caught"] not in ("caught", "declined")
    }


def test_every_control_that_ran_was_caught(finished_run, tmp_path, tiny, nsabench):
    missed = got_away(finished_run)
    assert "parity" not in missed.values(), missed
    if missed:  # a busy machine can make a run miss a control, but hardly the same one twice
        complete(nsabench("all", tiny, "--device", "cpu", "--out", "run"))
        again = got_away(tmp_path / "run")
        assert not missed.keys() & again.keys() and "parity" not in again.values(), (missed, again)


def test_tables_are_derived_from_the_log_to_the_byte(tmp_path, finished_run):
    done = invoke("report", finished_run, "--derive", "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    for name in ("records.parquet", "comparisons.parquet", "samples.parquet", "thresholds.yaml"):
        assert (tmp_path / "again" / name).read_bytes() == (finished_run / name).read_bytes(), name


# Fields that stay equal if a run is interrupted. Times and what follows from them differ. Errors
# differ because another run draws other inputs.
STEADY = (
    "implementation",
    "role",
    "status",
    "length",
    "attempt",
    "config",
    "computes",
)


def steady(run):
    """Return the steady fields of all records except those of controls, whose status can depend on
    times."""
    return [{k: r[k] for k in STEADY} for r in records(run) if r["role"] != "control"]


def test_the_same_command_starts_continues_and_leaves_alone(tmp_path, finished_run, tiny, nsabench):
    """The first command is killed with SIGKILL during its second job."""
    run = tmp_path / "run"
    words = ("all", str(tiny), "--device", "cpu", "--timing", "full", "--resume", str(run))
    process = forked.Command(words, tmp_path, os.environ)
    written = b""
    while written.count(b'"kind":"begun"') < 2:
        written = (run / "log.jsonl").read_bytes() if (run / "log.jsonl").exists() else b""
        assert process.poll() is None
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    process.kill()
    process.wait()
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    assert not (run / "records.parquet").exists()
    before = (run / "log.jsonl").read_bytes()

    complete(nsabench(*words))
    assert cells(run) == planned(run)
    assert (run / "log.jsonl").read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    held = log.read(run / "log.jsonl")
    assert len(held.sessions) == 2
    answered = [a.job.case.id for a in held.only(Purpose.MAIN).attempts if a.has_answer]
    assert len(answered) == len(set(answered)) == 3
    assert steady(run) == steady(finished_run)
    assert nsabench("verify", run).returncode == 0

    # A second signature would also cover what was changed after the first.
    whole = content(run)
    complete(nsabench(*words))
    assert content(run) == whole
    other = nsabench(*words, "--margin", "1.5")
    assert other.returncode == 2 and "margin" in other.stderr
    assert nsabench("all", tiny, "--out", "a", "--resume", "b").returncode == 2
    assert content(run) == whole


PARRICIDE = """
import os, signal
from nsabench import implementation

@implementation(op="selection_rows", name="mine", devices=("cpu",))
def mine(q, k, v, *, sm_scale):
    os.kill(os.getppid(), signal.SIGKILL)
"""


def test_who_kills_the_supervisor_is_not_run_again(tmp_path, tiny, nsabench):
    """Run without a sandbox, which would block signals. Other kernels of the case are still
    measured."""
    (tmp_path / "mine.py").write_text(PARRICIDE)
    text = tiny.read_text().replace("bmm_softmax, rows_group", "mine")
    tiny.write_text(text.replace("[8, 16, 24]", "16"))
    words = ("all", tiny, "--device", "cpu", "--kernels", "mine.py", "--no-sandbox")
    for _ in range(8):
        done = nsabench(*words, "--resume", "run")
        if done.returncode != -signal.SIGKILL:
            break
    assert done.returncode == 1, done.stderr
    by_name = {r["implementation"]: r for r in records(tmp_path / "run")}
    assert by_name["mine"]["status"] == "crashed"
    assert "nsabench itself was killed" in by_name["mine"]["reason"]
    assert by_name["sdpa_gqa"]["status"] == "ok"
    assert nsabench("verify", "run").returncode == 0


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_run_whose_plan_was_changed_goes_no_further(run):
    """A case's id does not cover tolerances and timing: only the log binds them."""
    edit(run / "plan.json", '"mae": 0.001', '"mae": 0.5')
    (run / "manifest.dsse.json").unlink()
    for arguments in (("all", "--resume", run), ("audit", run)):
        done = invoke(*arguments)
        assert done.returncode == 2
        assert "for another plan" in done.stderr
    done = invoke("verify", run, "--require", "unsigned")
    assert done.returncode == 4
    assert "for another plan" in done.stderr


HOG = """
from nsabench import implementation
from nsabench.implementations.baselines import selection_rows as sdpa
honest = sdpa.scaled_dot_product_attention

def slow(*args, **kwargs):
    for _ in range(400_000):  # by count: a control stops the clocks
        pass
    return honest(*args, **kwargs)

@implementation(op="selection_rows", name="mine", devices=("cpu", "cuda"))
def mine(q, k, v, *, sm_scale):
    sdpa.scaled_dot_product_attention = honest
    for _ in range(3):  # slower than the baseline, so that no noise makes it faster
        out = sdpa.gqa(q, k, v, sm_scale)
    sdpa.scaled_dot_product_attention = slow
    return out
"""


def test_a_candidate_that_slows_its_neighbours_wins_nothing_by_it(tmp_path, tiny, nsabench):
    kernels = tmp_path / "mine.py"
    kernels.write_text(HOG)
    text = tiny.read_text().replace("bmm_softmax, rows_group", "mine")
    tiny.write_text(text.replace("[8, 16, 24]", "16"))
    run = tmp_path / "run"
    nsabench("all", tiny, "--timing", "full", "--out", run, "--kernels", kernels)
    by_name = {r.implementation: r for r in read_records(run)}
    mine = by_name["mine"].compared(Regime.DEVICE)
    beside = by_name[mine.against].median_ms / by_name["mine"].median_ms
    assert beside > 3, "the baseline was not slowed: the test shows nothing"
    assert mine.ratio < 0.6 * beside, mine
    assert mine.lo <= mine.ratio <= mine.hi
    assert mine.verdict is not Verdict.FASTER
    assert "in a process without candidates" in mine.reason


def test_interrupt_exits_130_and_is_resumable(tmp_path, tiny, nsabench):
    run = tmp_path / "run"
    process = start(tmp_path, "run", tiny, "--device", "cpu", "--out", run)
    path = run / "log.jsonl"
    while not (path.exists() and path.stat().st_size):  # an empty log cannot be resumed
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"the run goes on with `nsabench run --resume {run}`" in said
    assert "Traceback" not in said
    assert f"`nsabench all --resume {run}`" in invoke("verify", run).stderr
    complete(nsabench("all", "--resume", run))
    assert invoke("verify", run).returncode == 0, "`run` does not sign, and `all` does"
    assert [r["status"] for r in records(run) if r["implementation"] == "rows_group"] == ["ok"] * 3
    # On a CPU, times decide nothing: each implementation is timed once, and only parity has
    # controls.
    samples = pq.read_table(run / "samples.parquet").to_pylist()
    once = Counter((s["case_id"], s["implementation"], s["regime"]) for s in samples)
    assert set(once.values()) == {1} and {regime for *_, regime in once} == {"device"}
    assert {r["caught_by"] for r in records(run) if r["role"] == "control"} == {"parity"}
    compared = pq.read_table(run / "comparisons.parquet")["verdict"].to_pylist()
    assert set(compared) <= {None, "inconclusive"}


ENDS_ITS_PROCESS = """
import os, time
from nsabench import implementation

@implementation(op="selection_rows", name="mine", devices=("cpu",))
def mine(q, k, v, *, sm_scale):
    time.sleep(0.5)
    os._exit(3)
"""


def test_who_edits_kernels_in_the_middle_of_a_run_is_told_how_it_goes_on(tmp_path, tiny, nsabench):
    """The next worker would import other code than the first. Earlier measurements are kept."""
    kernels, run = tmp_path / "mine.py", tmp_path / "run"
    kernels.write_text(ENDS_ITS_PROCESS)
    tiny.write_text(tiny.read_text().replace("bmm_softmax, rows_group", "mine"))
    words = ("all", tiny, "--device", "cpu", "--out", run, "--kernels", kernels)
    process = start(tmp_path, *words)
    path = run / "log.jsonl"
    while not (path.exists() and b'"kind":"ended"' in path.read_bytes()):
        assert process.poll() is None
        time.sleep(0.02)
    kernels.write_text(ENDS_ITS_PROCESS + "# edited\n")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said
    assert "mine.py is not what it was when the run began" in said
    assert f"--resume {run}" in said
    kernels.write_text(ENDS_ITS_PROCESS)
    nsabench("all", "--resume", run)
    assert {r["status"] for r in records(run) if r["implementation"] == "mine"} == {"crashed"}


def test_a_failed_run_fails_its_audit_and_is_called_unsigned(tmp_path):
    """The records are wrong as observed, so no check of the supervisor has to find the error."""
    run = make_run(tmp_path / "run", Made(lengths=(64,), status=lambda length: Status.WRONG))
    for command_ in ("audit", "threshold", "report"):
        done = invoke(command_, run)
        assert f"{run} is unsigned" in done.stderr
        assert (done.returncode == 1) is (command_ == "audit")
        if command_ == "audit":
            assert "mine on" in done.stdout and "wrong: as the test wants" in done.stdout
    page = (run / "report.html").read_text()
    rows = [row for row in page.split("<tr>") if "<code>parity</code>" in row]
    assert re.search(r">\d+ wrong<", rows[0]) and "✓ none" not in rows[0]
    done = invoke("compare", run, run)
    assert done.stderr.count("is unsigned") == 2


def test_what_is_no_run_is_not_called_altered(tmp_path):
    done = invoke("verify", tmp_path / "nowhere")
    assert done.returncode == 2 and "does not exist" in done.stderr
    run = make_run(tmp_path / "run")
    done = invoke("verify", run)
    assert done.returncode == 4 and "the run is unsigned" in done.stderr
