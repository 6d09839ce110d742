"""Host: where calls one behind the other take longer than the device works on each, the host is
what a caller waits for. The time of the device hides what such a caller pays; the verdict in the
regime `queue` is about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record
from nsabench.model.vocabulary import Mode, Regime, Role

MORE = 1.25  # times the time of the device: no doubt which of the two is awaited


def check(records: Sequence[Record], limits: Limits) -> list[Finding]:
    """Candidates, and controls of it, that are bound by their host."""
    return list(_find(records))


def _find(records: Sequence[Record]) -> Iterator[Finding]:
    for record in records:
        work_ms, queued_ms = worked_ms(record), record.median_in(Regime.QUEUE)
        if record.role is not Role.CANDIDATE and record.caught_by != "host":
            continue
        if work_ms is None or queued_ms is None or queued_ms <= MORE * work_ms:
            continue
        sentence = (
            f"bound by its host: {queued_ms * 1e3:.0f} µs of "
            f"{'replaying' if record.mode is Mode.GRAPH else 'Python'} for "
            f"{work_ms * 1e3:.0f} µs of work"
            f"{f', in {record.launches} launches' if record.launches else ''}"
        )
        yield Finding("host", Effect.NOTE, sentence, *record.key)


def worked_ms(record: Record) -> float | None:
    """How long the device works on a call: its time if the device was held meanwhile.

    A call that launches more than a device queues, or that waits for it, has its own gaps in that
    time: there it is what its kernels take by themselves. None: not known, as on a CPU.
    """
    if record.median_ms is None:
        return None
    if record.host_us is not None:
        return record.median_ms
    return None if record.kernels_us is None else record.kernels_us / 1e3
