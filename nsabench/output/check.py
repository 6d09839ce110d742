from collections.abc import Iterator, Sequence
from typing import Any

from nsabench import labels
from nsabench.channel import Step
from nsabench.check import Answer
from nsabench.errors import NsabenchError
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Regime, Status
from nsabench.output import grouped
from nsabench.output.standing import head, loud

LOG_LINES = 40
FORM = 2  # of what programs read; another one where a field means something else


def lines(answers: Sequence[Answer]) -> Iterator[str]:
    groups = grouped(answers, lambda answer: (answer.record.implementation, answer.case.op))
    for (name, op), cases in sorted(groups.items()):
        yield f"{name} ({op}): {head([answer.record for answer in cases])}"
        for answer in cases:
            yield f"  {labels.of_case(answer.case)}: {_describe_outcome(answer)}"
        log = next((a.log for a in cases if has_failed(a) and a.log.strip()), "")
        if log:
            yield "  what it printed and raised:"
            yield from (f"    {line}" for line in log.rstrip().splitlines()[-LOG_LINES:])


def as_json(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return the answers for programs, to which fields are only ever added."""
    return [
        {
            "version": FORM,
            "error": "",
            "implementation": answer.record.implementation,
            "op": answer.case.op,
            "case": labels.of_case(answer.case),
            "case_id": answer.case.id,
            "status": answer.record.status,
            "right": answer.record.status is Status.OK,
            "reason": answer.record.reason if has_failed(answer) else "",
            "diagnosis": answer.record.diagnosis,
            "diagnosis_id": _find_diagnosis_id(answer.record),
            "rel_l2": answer.record.rel_l2,
            "device_ms": answer.record.median_ms,
            "queued_ms": answer.record.median_in(Regime.QUEUE),
            "host_us": answer.record.host_us,
            "baseline": answer.baseline.implementation if answer.baseline else None,
            "baseline_device_ms": answer.baseline.median_ms if answer.baseline else None,
            "baseline_queued_ms": answer.baseline.median_in(Regime.QUEUE)
            if answer.baseline
            else None,
            "speedup": answer.record.speedup,
            "speedup_lo": answer.record.speedup_lo,
            "speedup_hi": answer.record.speedup_hi,
            "caution": _find_caution(answer.record),
            "log": answer.log if has_failed(answer) else "",
        }
        for answer in answers
    ]


def refusal(error: NsabenchError) -> list[dict[str, Any]]:
    told = {"version": FORM, "error": str(error), "remedy": error.remedy, "right": False}
    return [told | {"exit_code": error.exit_code}]


def of_step(step: Step) -> str:
    return f"{step.implementation}: {loud(Status(step.phase))} in its first calls"


def has_failed(answer: Answer) -> bool:
    return answer.record.status not in BENIGN


def _describe_outcome(answer: Answer) -> str:
    record, best = answer.record, answer.baseline
    if record.status is not Status.OK:
        why = record.diagnosis or record.reason
        return why if record.status is Status.WRONG else f"{record.status}: {why}"
    if record.median_ms is None:
        return "right, not timed"
    times = f"right, {_describe_times(record)}"
    if best is None:
        return f"{times}; no baseline was timed"
    against = f"{best.implementation} ({_describe_times(best)})"
    caution = _find_caution(record)
    said = f" ({caution})" if caution else ""
    interval = f"{record.speedup:.2f} [{record.speedup_lo:.2f}, {record.speedup_hi:.2f}]"
    return f"{times}; {interval} x as fast as {against}{said}"


def _find_diagnosis_id(record: Record) -> str:
    observation = record.observation if record.diagnosis else None
    return observation.diagnosis_id if observation else ""


def _find_caution(record: Record) -> str:
    return "; ".join(filter(None, (record.time_doubt, record.caution)))


def _describe_times(record: Record) -> str:
    host_ms = record.host_us and record.host_us / 1e3
    queued_ms = record.median_in(Regime.QUEUE)
    parts = {"device": record.median_ms, "queue": queued_ms, "host": host_ms}
    return ", ".join(
        f"{name} {ms:.3g} ms" if ms >= 1 else f"{name} {ms * 1e3:.3g} µs"
        for name, ms in parts.items()
        if ms
    )
