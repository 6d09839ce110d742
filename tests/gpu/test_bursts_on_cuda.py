"""What a burst reads, against the loop that a user would write."""

from __future__ import annotations

import statistics
import time
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CALLS, PAIRS = 100, 25
ROWS = {"N": 1024, "H": 8, "D": 128, "Dv": 128}
BLOCKS = {"B": 1, "HQ": 32, "H": 8, "D": 128, "Dv": 128, "S": 16, "block_size": 64}
CASES = (
    *(
        ("selection_rows", name, ROWS | {"L": n})
        for name in ("sdpa_gqa", "rows")
        for n in (64, 256)
    ),
    *(("selection_blocks", "blocks", BLOCKS | {"T": n}) for n in (2048, 8192)),
)


def plain_ms(item: Any, sets: Any) -> float:
    """Calls in a loop, with the inputs in turn, the device awaited at its ends only."""
    tensors = [list(inputs.tensors.values()) for inputs in sets.sets]
    options = sets.sets[0].options
    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(CALLS):
        out = item.call(*tensors[i % len(tensors)], **options)
    torch.cuda.synchronize()
    taken = time.perf_counter() - start
    del out
    return taken * 1e3 / CALLS


@pytest.mark.parametrize(("op", "name", "shape"), CASES)
def test_a_burst_reads_what_a_plain_loop_takes(op: str, name: str, shape: dict[str, int]) -> None:
    """Within 5 %, medians of bursts and loops in turn."""
    from nsabench import registry
    from nsabench.execution.timing.cuda import CudaTimer
    from nsabench.execution.worker.arm import CaseArm
    from nsabench.execution.worker.inputs import InputSets
    from nsabench.model.case import Case, Timing
    from nsabench.model.vocabulary import Direction, DType

    items = {i.name: i for i in registry.load() if i.op == op}
    chosen = name if name in items else next(n for n in items if n.startswith(name))
    case = Case(
        op=op,
        shape=shape,
        dtype=DType.BFLOAT16,
        direction=Direction.FORWARD,
        distribution="dense" if op == "selection_rows" else "random",
        streams=1,
        timeout_s=60,
        seed=1,
        timing=Timing(rotate=2),
    )
    sets = InputSets(case, "cuda")
    arm, timer = CaseArm(items[chosen], case, "cuda", sets, Random(0)), CudaTimer()
    pairs = [(arm.burst(timer, CALLS), plain_ms(items[chosen], sets)) for _ in range(PAIRS)][3:]
    ratio = statistics.median(a / b for a, b in pairs)
    burst = statistics.median(a for a, _ in pairs)
    print(f"\n{chosen} {shape}: {1e3 * burst:.1f} us a call, {ratio:.3f} of a plain loop")
    assert 0.95 <= ratio <= 1.05
