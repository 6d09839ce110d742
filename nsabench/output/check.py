import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

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
from nsabench.output.programs import CheckDocument, CheckedKernel, Outcome
from nsabench.output.standing import DECLINED, head, loud

LOG_LINES = 40


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


def as_document(answers: Sequence[CheckResult], exit_code: int) -> CheckDocument:
    return CheckDocument(exit_code=exit_code, answers=list(map(_describe_checked, answers)))


def refusal(error: NsabenchError) -> CheckDocument:
    return CheckDocument(exit_code=error.exit_code, error=str(error), remedy=error.remedy)


def _describe_checked(result: CheckResult) -> CheckedKernel:
    record, best = result.record, result.baseline
    failed = has_failed(result)
    values = Outcome.values_of(record) | {
        "reason": record.reason if failed else "",
        "caution": _find_caution(record),
        "best_baseline": best.implementation if best else "",
    }
    return CheckedKernel(
        **values,
        case_id=result.case.id,
        case=labels.case_with_op(result.case),
        op=result.case.op,
        implementation=record.implementation,
        right=record.status is Status.OK,
        diagnosis_id=_find_observed(record, "diagnosis_id"),
        worst_element=_find_observed(record, "worst_element"),
        rel_l2=record.rel_l2,
        host_us=record.host_us,
        baseline_ms=best.median_ms if best else None,
        baseline_queue_ms=best.median_in(Regime.QUEUE) if best else None,
        log=result.log if failed else "",
    )


def describe_step(step: Step) -> str:
    return f"{step.implementation}: {loud(Status(step.phase))} in its first calls"


def has_failed(result: CheckResult) -> bool:
    return result.record.status not in BENIGN


def _describe_outcome(result: CheckResult) -> str:
    record, best = result.record, result.baseline
    if record.status is not Status.OK:
        why = record.diagnosis or record.reason
        if record.status is Status.TIMEOUT:
            is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
            why += f"; {'the machine is busy, so ' * is_busy}allow more with --timeout SECONDS"
        return why if record.status is Status.WRONG else f"{record.status}: {why}"
    if record.median_ms is None:
        return "right, not timed"
    times = f"right, {_describe_times(record)}"
    if best is None:
        return f"{times}; no baseline was timed"
    against = f"{best.implementation} ({_describe_times(best)})"
    caution = _find_caution(record)
    remark = f" ({caution})" if caution else ""
    interval = f"{record.speedup:.2f} [{record.speedup_lo:.2f}, {record.speedup_hi:.2f}]"
    return f"{times}; {interval} x as fast as {against}{remark}"


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
