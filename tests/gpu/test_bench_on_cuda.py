"""Whole runs on a CUDA device: their controls, CUDA graphs, and hostile kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from nsabench.model.job import Job
from nsabench.model.plan import PlannedCase
from nsabench.model.vocabulary import Purpose, Role, Status, Verdict
from nsabench.verdicts.tables import read_records
from nsabench.worker.guard import own_stream
from tests import main_pass
from tests.checking import a_case, plan_of

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parent

ROWS = """
op: selection_rows
axes: {dtype: [float16], N: [256, 1024], H: 8, D: 128, L: [256, 1024]}
"""
# A case has some twenty controls, so what does not depend on sizes is tested on two cases.
TWO_ROWS = """
op: selection_rows
axes: {dtype: [float16], N: 1024, H: 8, D: 128, L: [256, 1024]}
"""


# A kernels file begins with this.
HEADER = """
import gc, threading, time
import torch, triton, triton.language as tl
from nsabench import implementation
from nsabench.implementations.baselines.selection_rows import gqa
"""


def run(folder, matrix, kernels="", code=0):
    """Run `nsabench all`, and return its records. code: the required exit code; None: any."""
    (folder / "m.yaml").write_text(matrix)
    (folder / "mine.py").write_text(HEADER + kernels)
    command = [sys.executable, "-m", "nsabench", "all", "m.yaml", "--device", "cuda"]
    command += ["--kernels", "mine.py"] if kernels else []
    done = subprocess.run(
        [*command, "--out", "run"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "CI": "1"},
    )
    assert code in (None, done.returncode), done.stdout[-3000:] + done.stderr
    own = {r.key: r.own for r in read_records(folder / "run")}
    return [
        r | {"median_ms": times.median_ms, "net_ms": times.net_ms}
        for r in pq.read_table(folder / "run" / "records.parquet").to_pylist()
        for times in [own[r["case_id"], r["implementation"]]]
    ]


def test_every_control_is_caught_and_no_other_fails(tmp_path):
    records = run(tmp_path, ROWS)
    controls = [r for r in records if r["role"] == "control"]
    others = [r for r in records if r["role"] != "control"]
    # Each check on which a verdict rests caught a control.
    judged = [r for r in others if r["role"] == "candidate" and r["median_ms"]]
    assert judged and {r["unproven"] for r in judged} == {""}
    amiss = [r for r in controls if r["caught"] not in ("caught", "declined")]
    amiss += [r for r in others if r["status"] not in ("ok", "unsupported")]
    assert [(r["implementation"], r["status"], r["caught"], r["reason"]) for r in amiss] == []
    by_accident = [r["reason"] for r in controls if r["implementation"] == "default_stream"]
    assert {r["caught"] for r in controls if r["implementation"] == "remembered_by_content"} == {
        "caught",
    }
    assert by_accident and all("other than the default" in r for r in by_accident)


IN_GRAPHS = {"patched_replay", "repeating_wrapper", "recalled_in_a_graph"}
IN_A_BACKWARD = {"patched_clocks", "sleeping_backward", "recalled_gradients"}
GRAPHS_AND_GRADIENTS = {
    "decode_dense": (
        "axes: {dtype: bfloat16, B: 8, S: 32768, HQ: 64, H: 4, D: 128}\n"
        "timing: {mode: graph, rotate: 2}\n",
        IN_GRAPHS,
    ),
    "decode_step": (
        "axes: {dtype: bfloat16, B: 64, S: 32768, HQ: 64, H: 4, D: 128, block: 32,\n"
        "       stride: 16, block_size: 64, n_selected: 16, window: 512}\n"
        "timing: {mode: graph, rotate: 2}\n",
        IN_GRAPHS,
    ),
    "selection_blocks": (
        "axes: {dtype: bfloat16, direction: backward, B: 1, T: 2048, HQ: 64, H: 4,\n"
        "       D: 128, S: 16, block_size: 64}\n"
        "timing: {rotate: 2}\n",
        IN_A_BACKWARD,
    ),
    "sliding_window": (
        "axes: {dtype: bfloat16, direction: backward, B: 1, T: 8192, HQ: 64, H: 4,\n"
        "       D: 128, window: 512}\n",
        IN_A_BACKWARD,
    ),
}


@pytest.mark.parametrize("op", GRAPHS_AND_GRADIENTS)
def test_in_graphs_and_in_a_backward_every_check_is_proven(op, tmp_path):
    matrix, names = GRAPHS_AND_GRADIENTS[op]
    records = run(tmp_path, f"op: {op}\n{matrix}")
    controls = [r for r in records if r["role"] == "control"]
    amiss = [r for r in controls if r["caught"] not in ("caught", "declined")]
    assert [(r["implementation"], r["status"], r["caught"], r["reason"]) for r in amiss] == []
    assert names <= {r["implementation"] for r in controls if r["caught"] == "caught"}
    judged = [r for r in records if r["role"] == "candidate" and r["median_ms"]]
    assert judged and {r["unproven"] for r in judged} == {""}


NSA = "op: nsa_attention\naxes: {dtype: bfloat16, B: 1, HQ: 64, H: 4, D: 128, "
# A step must take longer than a look-up of its result, and PyTorch's loop must fit in memory.
FEWER_HEADS = NSA.replace("HQ: 64, H: 4", "HQ: 32, H: 2")
WITHOUT_LOOP = (
    "implementations: {skip: [torch_nsa, dense_*]}\n"
    "timing: {rotate: 2, stopping: {kind: ratio_ci, min_rounds: 8, budget_s: 1.0}}\n"
)
FORWARDS_AND_STEPS = {
    "remembered_by_content": "op: decode_step\naxes: {dtype: bfloat16, B: 64, S: 32768, HQ: 64, "
    "H: 4, D: 128, block: 32, stride: 16, block_size: 64, n_selected: 16, window: 512}\n"
    "timing: {rotate: 2}\n",
    "recalled_output": f"{NSA} T: 256}}\n---\n{NSA} T: 8192}}\n{WITHOUT_LOOP}",
    "recalled_step": f"{NSA} T: 256, direction: step}}\n---\n"
    f"{FEWER_HEADS} T: 16384, direction: step}}\n{WITHOUT_LOOP}",
    "products_recalled_in_a_graph": f"{NSA} T: 256}}\ntiming: {{mode: graph}}\n---\n"
    f"{NSA} T: 8192}}\n" + WITHOUT_LOOP.replace("{rotate", "{mode: graph, rotate"),
}


@pytest.mark.parametrize("name", FORWARDS_AND_STEPS)
def test_no_forward_and_no_step_is_without_a_roofline(name, tmp_path):
    records = run(tmp_path, FORWARDS_AND_STEPS[name])
    assert {r["caught"] for r in records if r["implementation"] == name} == {"caught"}
    judged = [r for r in records if r["role"] == "candidate" and r["median_ms"]]
    assert judged and not any("roofline" in r["unproven"] for r in judged)


def test_graph_mode_measures_the_same_work(tmp_path):
    for mode in ("stream", "graph"):
        (tmp_path / mode).mkdir()
    timing = "timing: {mode: MODE, stopping: {kind: fixed_count, rounds: 60}}\n"
    stream, graph = (
        {
            (r["N"], r["L"], r["implementation"]): r
            for r in run(tmp_path / m, TWO_ROWS + timing.replace("MODE", m))
            if r["role"] != "control"  # each mode has controls of its own
        }
        for m in ("stream", "graph")
    )
    assert stream.keys() == graph.keys()
    for key, one in stream.items():
        if one["status"] != "ok":
            continue
        assert graph[key]["status"] == "ok", (key, graph[key]["reason"])
        # A replay has no launch gaps between kernels, and no more work than a call.
        medians = graph[key]["median_ms"], one["median_ms"]
        assert medians[0] < 1.1 * medians[1] + 2e-3, (key, medians)


HOSTILE = """
@triton.jit
def out_of_bounds(p):
    tl.store(p + (1 << 40), 1.0)


@triton.jit
def endless(p):
    while tl.load(p, volatile=True) == 0.0:
        pass


@triton.jit
def not_a_kernel(p):
    tl.no_such_thing(p)


@implementation(op="selection_rows", name="illegal_access")
def illegal_access(q, k, v, *, sm_scale):
    out_of_bounds[(1,)](torch.zeros(1, device="cuda"))
    return gqa(q, k, v, sm_scale)


@implementation(op="selection_rows", name="endless_kernel")
def endless_kernel(q, k, v, *, sm_scale):
    endless[(1,)](torch.zeros(1, device="cuda"))
    return gqa(q, k, v, sm_scale)


@implementation(op="selection_rows", name="does_not_compile")
def does_not_compile(q, k, v, *, sm_scale):
    not_a_kernel[(1,)](q)
    return gqa(q, k, v, sm_scale)


@implementation(op="selection_rows", name="wants_all_memory")
def wants_all_memory(q, k, v, *, sm_scale):
    torch.empty(1 << 50, device="cuda")
    return gqa(q, k, v, sm_scale)


@implementation(op="selection_rows", name="honest")
def honest(q, k, v, *, sm_scale):
    return gqa(q, k, v, sm_scale)
"""


def test_hostile_kernels_end_no_other(tmp_path):
    names = "illegal_access, endless_kernel, does_not_compile, wants_all_memory, honest, sdpa_gqa"
    records = run(
        tmp_path,
        "op: selection_rows\naxes: {N: 64, H: 4, D: 64, L: [64, 128]}\n"
        f"implementations: {{only: [{names}]}}\ntimeout_s: 10\n",
        HOSTILE,
        code=1,
    )
    statuses = {}
    for r in records:
        if r["role"] != "control":
            statuses.setdefault(r["implementation"], set()).add(r["status"])
    assert statuses == {
        "illegal_access": {"crashed"},
        "endless_kernel": {"timeout"},
        "does_not_compile": {"compile_error"},
        "wants_all_memory": {"out_of_memory"},
        "honest": {"ok"},
        "sdpa_gqa": {"ok"},
        "sdpa_heads_as_queries": {"ok"},  # the baseline that controls wrap
    }
    [illegal] = {r["reason"] for r in records if r["implementation"] == "illegal_access"}
    assert "illegal memory access" in illegal
    assert {r["caught"] for r in records if r["role"] == "control"} <= {"caught", "declined"}


NEIGHBOUR = """
OWN_S = 1e-3  # from the start of its own call until its sample is over
_called = [0.0]


def _burn():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        a = torch.randn(2048, 2048, dtype=torch.float16, device="cuda")
        while True:
            if time.perf_counter() - _called[0] < OWN_S:
                time.sleep(1e-4)
                continue
            a @ a
            stream.synchronize()


@implementation(op="selection_rows", name="mine")
def mine(q, k, v, *, sm_scale):
    _called[0] = time.perf_counter()
    if not any(t.name == "burn" for t in threading.enumerate()):
        threading.Thread(target=_burn, daemon=True, name="burn").start()
    return gqa(q, k, v, sm_scale)
"""


def test_work_on_a_stream_of_its_own_beside_the_others_wins_nothing(tmp_path):
    matrix = "op: selection_rows\naxes: {N: 1024, H: 8, D: 128, L: [64, 256]}\n"
    run(tmp_path, matrix, NEIGHBOUR, code=None)
    mine = [r for r in read_records(tmp_path / "run") if r.implementation == "mine"]
    assert len(mine) == 2
    assert all(r.verdict is not Verdict.FASTER for r in mine)


WAITS = """
@implementation(op="selection_rows", name="waits", role="baseline")
def waits(q, k, v, *, sm_scale):
    torch.cuda.synchronize()
    return gqa(q, k, v, sm_scale)


@implementation(op="selection_rows", name="mine")
def mine(q, k, v, *, sm_scale):
    return gqa(q, k, v, sm_scale)
"""
IN_A_GRAPH = "timing: {mode: graph, stopping: {kind: fixed_count, rounds: 20}}\n"


DYING = """
def leave_a_graph():
    graph = torch.cuda.CUDAGraph()
    one = torch.ones(1, device="cuda")
    with torch.cuda.graph(graph):
        one += 1
    cycle = [graph]
    cycle.append(cycle)


@implementation(op="selection_rows", name="mine")
def mine(q, k, v, *, sm_scale):
    if torch.cuda.is_current_stream_capturing():
        gc.collect()
    else:
        leave_a_graph()
    return gqa(q, k, v, sm_scale)
"""


@pytest.mark.untimed
def test_a_call_that_waits_is_unsupported_in_a_graph(tmp_path):
    records = run(tmp_path, TWO_ROWS + IN_A_GRAPH, WAITS)
    waits = [r for r in records if r["implementation"] == "waits"]
    assert {r["status"] for r in waits} == {"unsupported"}
    assert all("cannot be captured in a CUDA graph" in r["reason"] for r in waits)
    assert {r["status"] for r in records if r["implementation"] == "mine"} == {"ok"}
    assert {r["net_ms"] for r in records} == {None}


@pytest.mark.untimed
def test_a_graph_collected_in_a_capture_does_not_end_it(tmp_path):
    """The collection destroys graphs in reference cycles during a capture."""
    records = run(tmp_path, TWO_ROWS + IN_A_GRAPH, DYING)
    mine = [r for r in records if r["implementation"] == "mine"]
    assert [r["status"] for r in mine] == ["ok"] * 2, [r["reason"] for r in mine]


LATER_IN_BFLOAT16 = """
_calls = torch.zeros((), dtype=torch.int64, device="cuda")  # counted by replays, too


@implementation(op="selection_rows", name="mine")
def mine(q, k, v, *, sm_scale):
    _calls.add_(1)
    out = gqa(q, k, v, sm_scale)
    return torch.where(_calls > 8, out.bfloat16().to(out.dtype), out)
"""


@pytest.mark.untimed
def test_outputs_of_replays_are_compared(tmp_path):
    """The first output is right; later replays round it to bfloat16."""
    matrix = (
        "op: selection_rows\naxes: {dtype: float32, N: 16, H: 4, D: 64, L: [64, 128]}\n"
        "timing: {mode: graph, rotate: 2, stopping: {kind: fixed_count, rounds: 20}}\n"
    )
    records = run(tmp_path, matrix, LATER_IN_BFLOAT16, code=1)
    mine = [r for r in records if r["implementation"] == "mine"]
    assert [r["status"] for r in mine] == ["wrong"] * 2, [r["reason"] for r in mine]
    assert all(1e-4 < r["rel_l2"] < 1e-2 for r in mine)


SLOW_HOST = """
_side = []


@implementation(op="selection_rows", name="mine")
def mine(q, k, v, *, sm_scale):
    _side[:] = _side or [torch.cuda.Stream()]
    end = time.perf_counter() + 4e-3
    while time.perf_counter() < end:
        pass
    with torch.cuda.stream(_side[0]):
        return gqa(q, k, v, sm_scale)
"""


@pytest.mark.untimed
def test_a_slow_host_hides_no_work_on_a_side_stream(tmp_path):
    """The host takes longer to queue the call than a short spin lasts."""
    matrix = TWO_ROWS + "timing: {stopping: {kind: fixed_count, rounds: 10}}\n"
    records = run(tmp_path, matrix, SLOW_HOST, code=1)
    mine = [r for r in records if r["implementation"] == "mine"]
    assert [r["status"] for r in mine] == ["wrong"] * 2
    assert all("on its stream" in r["reason"] for r in mine)


def test_no_stream_of_the_workers_is_one_of_torchs():
    """If a side stream were the stream of the call, work on it would be in order by accident."""
    own = own_stream().cuda_stream
    assert own not in {torch.cuda.Stream().cuda_stream for _ in range(64)}


def test_an_implementation_does_not_beat_itself(tmp_path):
    """These are some of the cases of `just gpu-self-check` (docs/explanation/measurement.md)."""
    matrix = (HERE / "self_check.yaml").read_text().replace("[128, 256, 512, 1024, 2048]", "1024")
    run(tmp_path, matrix, (HERE / "self_check.py").read_text())
    verdicts = [r.verdict for r in read_records(tmp_path / "run") if r.role is Role.CANDIDATE]
    assert len(verdicts) == 40
    assert sum(v in (Verdict.FASTER, Verdict.SLOWER) for v in verdicts) <= 1


def test_a_worker_that_waits_holds_no_memory(tmp_path):
    """`check` has two workers, and memory that one keeps is missing for the other."""
    shape = {"N": 1024, "H": 8, "D": 128, "Dv": 128, "L": 2048}
    job = Job(
        purpose=Purpose.MAIN,
        case=a_case("selection_rows", shape, timeout_s=120),
        sources=(),
        attempt=1,
        implementations=("sdpa_gqa_math",),
    )
    planned = PlannedCase(id=job.case.id, case=job.case, implementations=("sdpa_gqa",))
    plan = plan_of(HERE / "self_check.py", [planned], device="cuda")
    infos = [info.model_copy(update={"name": "sdpa_gqa_math"}) for info in plan.implementations]
    plan = plan.model_copy(update={"implementations": infos})
    with main_pass.executor_of(plan, tmp_path) as executor:
        executor.worker.describe()
        before, _ = torch.cuda.mem_get_info()
        [observation] = executor.run(job).observations
        after, _ = torch.cuda.mem_get_info()
    assert observation.status is Status.OK and observation.peak_mem_bytes, observation.reason
    assert before - after < 2 << 30  # the worker's context, and the memory of its timer
