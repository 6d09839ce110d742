"""What looks along a length finds in shards what it finds in the whole."""

from dataclasses import replace

import pytest

from nsabench.model.vocabulary import Verdict
from nsabench.running.folder import RunFolder
from nsabench.verdicts.results import assemble
from tests.runs import Made, make_run

# Measured on an H200: torch stopped compiling at the third shape.
UNCOMPILED = {64: 0.0103, 128: 0.0128, 256: 3.09, 512: 4.04}
FAST = Made(ratio=lambda _: 2.0, base_ms=0.02)


def of(folder):
    [part] = RunFolder(folder).parts()
    return assemble(part.plan.run_id, [part])


def cliffs(results):
    return {(f.case_id, f.sentence) for f in results.findings if f.check == "cliff"}


def left_open(results):
    return {r.case_id for r in results.records if r.verdict is Verdict.INCONCLUSIVE}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_cliff_is_found_in_shards_as_in_the_whole(tmp_path, count):
    made = replace(FAST, flex_ms=UNCOMPILED.__getitem__, noise=0.0)
    whole = of(make_run(tmp_path / "whole", made))
    assert len(cliffs(whole)) == 8
    assert len(left_open(whole)) == 8
    shards = [
        of(make_run(tmp_path / f"{i}", replace(made, shard=f"{i}/{count}", run_id=f"r{i}")))
        for i in range(1, count + 1)
    ]
    assert set().union(*map(cliffs, shards)) == cliffs(whole)
    assert set().union(*map(left_open, shards)) == left_open(whole)
