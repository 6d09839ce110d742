"""What speaks against deciding in a shard speaks against the merged run."""

from __future__ import annotations

from nsabench.model.vocabulary import Regime
from nsabench.verdicts.objections import against
from nsabench.verdicts.threshold.evidence import Evidence, together


def test_a_control_missed_in_the_queue_of_a_later_shard_counts() -> None:
    found = {("", Regime.QUEUE): ["missed"], ("decode_step", Regime.QUEUE): ["no control ran"]}
    whole = together([Evidence([]), Evidence([], found), Evidence([], found)])
    assert against(whole.against, "decode_step", Regime.QUEUE) == ["missed", "no control ran"]
    assert against(whole.against, "decode_step", Regime.DEVICE) == []
