"""One shard is measured on each `Place` of a host, all at once, and they are merged into one
run."""

import shutil

import pytest

from nsabench.cli._options import Measuring
from nsabench.cli.all import measure_shards
from nsabench.errors import EnvironmentRefused
from nsabench.evidence.manifest import verify
from nsabench.fleet.devices import Place, measure, places
from nsabench.machine.environment import nvml
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose, Status
from nsabench.output.result import NOT_TRIED
from nsabench.running.log import read

TINY = """
op: selection_rows
axes: {N: 4, H: [1, 2], D: 32, L: [8, 2048]}
implementations: {only: [sdpa_gqa, bmm_softmax]}
timing:
  warmup_s: 0.005
  stopping: {kind: fixed_count, rounds: 5}
"""
BOTH = [Place("first", {"NSABENCH_TEST_PLACE": "1"}), Place("second", {})]


def asked(matrix, out):
    return Measuring(matrices=(str(matrix),), device="cpu", out=out, where=("D=32",))


def test_two_shards_at_once_make_one_run(tmp_path, capsys):
    """A second command measures nothing again, and merges the shards."""
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY)
    out, shards = tmp_path / "whole", tmp_path / "whole.shards"
    # On a busy CPU, controls of the host's clock may be missed.
    assert measure_shards(asked(matrix, out), BOTH) in (1, NOT_TRIED)
    report = verify(out)
    assert report.broken is None
    plan = Plan.read(out / "plan.json")
    assert len(plan.cases) == 4 and len(plan.shards) == 2 and plan.where == ("D=32",)
    said = capsys.readouterr().out
    assert "[first] " in said and "[second] " in said
    logs = [read(shards / f"{number}/log.jsonl") for number in (1, 2)]
    first, second = (log.sessions[0] for log in logs)
    assert abs((first.started - second.started).total_seconds()) < 20
    for log in logs:
        assert plan.canary is not None
        [attempt] = log.attempts_of(Purpose.CANARY, plan.canary.id)
        assert {o.status for o in attempt.observations} == {Status.OK}
    shutil.rmtree(out)
    measure_shards(asked(matrix, out), BOTH)
    again = [read(shards / f"{number}/log.jsonl") for number in (1, 2)]
    assert [log.sessions for log in again] == [log.sessions for log in logs]


def test_a_shard_that_does_not_come_to_its_end_is_named(tmp_path):
    lines = []
    with pytest.raises(EnvironmentRefused, match="the shard on first ended with exit code 2"):
        measure(["none.yaml"], BOTH, tmp_path / "s", lambda *line: lines.append(line))
    assert any("there is no matrix" in line for _, line in lines)


@pytest.mark.skipif(nvml.failure() is None, reason="needs a machine without a GPU")
def test_without_a_gpu_it_is_refused():
    with pytest.raises(EnvironmentRefused, match="needs GPUs") as no:
        places("all")
    assert "nsabench doctor" in no.value.remedy
