"""How much room a run takes where a thousand of them are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from nsabench.assessment import parquet
from nsabench.assessment.results import Results
from nsabench.model.measurement import Samples


def test_a_sample_takes_six_bytes(tmp_path: Path) -> None:
    """The timings have the grain of CUDA events (1/32 µs) and the jitter of a quiet device."""
    rng = np.random.default_rng(0)
    count, arms = 200, 10
    by_key = {}
    for case in range(20):
        seconds = np.cumsum(rng.normal(7e-6, 4e-7, count * arms) + 1e-5)
        for arm in range(arms):
            times = np.round(rng.normal(20 + arm, 0.2, count) * 32) / 32e3
            by_key[f"case{case}", f"arm{arm}"] = (
                1,
                Samples(
                    round=list(range(count)),
                    order=rng.permutation(count).tolist(),
                    at_s=[round(float(x), 6) for x in seconds[arm::arms]],
                    time_ms=[float(np.float32(x)) for x in times],
                    escaped_ms=[0.0] * count,
                    gap_hidden=[True] * count,
                    sm_clock_mhz=[1980] * count,
                ),
            )
    parquet.write(Results([], by_key, {}, [], {}), "a-run", tmp_path)
    path = tmp_path / "samples.parquet"
    table = pq.read_table(path)
    assert table.num_rows == 20 * count * arms
    assert path.stat().st_size / table.num_rows < 6
    written = [x for _, samples in by_key.values() for x in samples.at_s]
    assert np.abs(table["at_s"].to_numpy() - written).max() < 1e-6
    times = [x for _, samples in by_key.values() for x in samples.time_ms]
    assert table["time_ms"].to_pylist() == times, "what was timed is kept to the bit"
