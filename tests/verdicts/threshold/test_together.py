"""What speaks against deciding in a shard speaks against the merged run."""

from __future__ import annotations

from nsabench.model.vocabulary import Regime
from nsabench.verdicts.threshold.evidence import Evidence, InQueue, together


def test_a_control_missed_in_the_queue_of_a_later_shard_counts() -> None:
    of_op = {"decode_step": "no control ran"}
    whole = together([Evidence([]), Evidence([], in_queue=InQueue("missed", of_op))])
    assert whole.against("decode_step", Regime.QUEUE) == ["missed", "no control ran"]
    assert whole.against("decode_step", Regime.DEVICE) == []
