from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from nsabench import labels
from nsabench.channel import Step
from nsabench.check import CheckResult
from nsabench.errors import NsabenchError
from nsabench.machine.environment import nvml
from nsabench.model.plan import Device
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Regime, Status
from nsabench.output import grouped
from nsabench.output.document import FAILED, STYLES, Sentence
from nsabench.output.standing import DECLINED, head, loud

LOG_LINES = 40
FORM = 2  # the version of the JSON, which changes with the meaning of a field


def header(file: Path, device: Device, now: datetime) -> str:
    visible = nvml.Device.visible() if device == "cuda" else None
    name = visible.name() if visible else None
    return f"{file} on {name or f'the {device.upper()}'}, {now:%H:%M:%S}"


def lines(results: Sequence[CheckResult]) -> Iterator[Sentence]:
    groups = grouped(results, lambda result: (result.record.implementation, result.case.op))
    for (name, op), cases in sorted(groups.items()):
        style = STYLES["ok"]
        if any(map(has_failed, cases)):
            style = FAILED
        elif all(result.record.status in DECLINED for result in cases):
            style = STYLES["skipped"]
        yield Sentence(f"{name} ({op}): {head([result.record for result in cases])}", style)
        for result in cases:
            yield Sentence(f"  {labels.case_with_op(result.case)}: {_describe_outcome(result)}")
            if element := _find_observed(result.record, "worst_element"):
                yield Sentence(f"    {element}")
        trace = next((a.traceback for a in cases if has_failed(a) and a.traceback.strip()), "")
        yield from _indent_log(trace)
    printed = dict.fromkeys(a.printed for a in results if has_failed(a) and a.printed.strip())
    if printed:
        yield Sentence("what the kernels of these cases printed:")
        yield from _indent_log("\n".join(printed))


def _indent_log(text: str) -> Iterator[Sentence]:
    for line in text.rstrip().splitlines()[-LOG_LINES:]:
        yield Sentence(f"    {line}", "dim")


def as_json(results: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """Return the results for programs, to which fields are only ever added."""
    return [
        {
            "version": FORM,
            "error": "",
            "implementation": result.record.implementation,
            "op": result.case.op,
            "case": labels.case_with_op(result.case),
            "case_id": result.case.id,
            "status": result.record.status,
            "right": result.record.status is Status.OK,
            "reason": result.record.reason if has_failed(result) else "",
            "diagnosis": result.record.diagnosis,
            "diagnosis_id": _find_observed(result.record, "diagnosis_id"),
            "worst_element": _find_observed(result.record, "worst_element"),
            "rel_l2": result.record.rel_l2,
            "device_ms": result.record.median_ms,
            "queued_ms": result.record.median_in(Regime.QUEUE),
            "host_us": result.record.host_us,
            "baseline": result.baseline.implementation if result.baseline else None,
            "baseline_device_ms": result.baseline.median_ms if result.baseline else None,
            "baseline_queued_ms": result.baseline.median_in(Regime.QUEUE)
            if result.baseline
            else None,
            "speedup": result.record.speedup,
            "speedup_lo": result.record.speedup_lo,
            "speedup_hi": result.record.speedup_hi,
            "caution": _find_caution(result.record),
            "log": result.log if has_failed(result) else "",
        }
        for result in results
    ]


def refusal(error: NsabenchError) -> list[dict[str, Any]]:
    common = {"version": FORM, "error": str(error), "remedy": error.remedy, "right": False}
    return [common | {"exit_code": error.exit_code}]


def describe_step(step: Step) -> str:
    return f"{step.implementation}: {loud(Status(step.phase))} in its first calls"


def has_failed(result: CheckResult) -> bool:
    return result.record.status not in BENIGN


def _describe_outcome(result: CheckResult) -> str:
    record, best = result.record, result.baseline
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


def _find_observed(record: Record, name: str) -> str:
    is_wrong = record.status is Status.WRONG
    observation = record.observation if is_wrong else None
    return str(getattr(observation, name)) if observation else ""


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
