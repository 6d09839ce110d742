"""How long a run on a CPU times what decides nothing for a GPU."""

from collections import Counter

import pyarrow.parquet as pq

from nsabench.model.vocabulary import Catch, Role, Status
from nsabench.running import log
from nsabench.verdicts.tables import read_records
from tests.cli.conftest import complete

# The baselines take some ms, and by the rule of the matrix they would be timed for seconds.
MATRIX = """
op: selection_rows
axes: {N: 32, H: 4, D: 64, L: 256}
implementations: {only: ["sdpa_*", "bmm_*", "rows_group", "mine"]}
"""
MINE = """
import torch
from nsabench import implementation

@implementation(op="selection_rows", name="mine", devices=("cpu", "cuda"))
def mine(q, k, v, *, sm_scale):
    return torch.softmax(q.float() @ k.float().mT * sm_scale, -1).to(v.dtype) @ v
"""


def test_a_run_on_a_cpu_checks_all_and_times_each_once(tmp_path, nsabench):
    """All its time went into baselines, whose times decide nothing."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    (tmp_path / "mine.py").write_text(MINE)
    complete(nsabench("all", "m.yaml", "--device", "cpu", "--kernels", "mine.py", "--out", "run"))
    records = read_records(tmp_path / "run")
    measured = log.read(tmp_path / "run/log.jsonl")
    samples = pq.read_table(tmp_path / "run/samples.parquet").to_pylist()
    assert {sample["regime"] for sample in samples} == {"device"}
    once = Counter((sample["case_id"], sample["implementation"]) for sample in samples)
    assert set(once.values()) == {1}
    assert sum(sample["time_ms"] for sample in samples) / 1e3 <= 0.2 * measured.wall_s
    mine = [r for r in records if r.implementation == "mine"]
    assert {r.status for r in mine} == {Status.OK}
    assert all(c.verdict in (None, "inconclusive") for r in mine for c in r.comparisons)
    controls = [r for r in records if r.role is Role.CONTROL]
    assert {r.caught_by for r in controls} == {"parity"}
    assert {r.caught for r in controls} <= {Catch.CAUGHT, Catch.DECLINED}
