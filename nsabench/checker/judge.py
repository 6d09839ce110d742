"""Compare the results of implementations with the oracle, and diagnose wrong results."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from nsabench import ops
from nsabench.checker import compare
from nsabench.checker.compare import Errors, WrongValues
from nsabench.checker.diagnosis.gradients import diagnose_gradient
from nsabench.checker.diagnosis.outputs import diagnose
from nsabench.checker.diagnosis.search import TIME_LIMIT_S, Diagnosis, mistake
from nsabench.checker.protocol import Checked, Concluded, NoOracle, Prepare, Prepared
from nsabench.delivery import FACTORS, OUTPUT, Delivery, Form, Mailbox, draw
from nsabench.errors import UsageError
from nsabench.failure import Failure
from nsabench.model.case import Case
from nsabench.model.measurement import Judged
from nsabench.model.vocabulary import Status
from nsabench.ops import STRIDED, Inputs, Probe

MEMORY_SHARE = 0.25  # more than two sets of inputs take at most this share of free device memory
MOST_OF_MEMORY = 0.6  # if two sets take more than this share, the case fails as out of memory


class Oracles:
    """The right results of a case for one set of inputs for each seed.

    If memory is short, only the first seeds, but at least two, have a set. expected: the results of
    each set by name: gradients in float64 first, then `output`, in float32 if there are gradients.
    """

    def __init__(
        self, case: Case, seeds: Sequence[int], device: str, probe: Probe | None = None
    ) -> None:
        """Raise `Failure` if two sets would take over `MOST_OF_MEMORY` of free device memory."""
        self.case = probe.case if probe else case
        self.op = ops.get(case.op)
        self.seeds = seeds
        self._probe, self._device = probe, device
        self.expected: list[dict[str, Tensor]] = []
        free = _count_free_bytes() if device == "cuda" else None
        nbytes = self._add_set(seeds[0])
        count = len(seeds) if free is None else _count_sets(case, len(seeds), nbytes, free)
        for seed in seeds[1:count]:
            self._add_set(seed)

    def _add_set(self, seed: int) -> int:
        inputs, grad_out = self.draw(seed)
        if grad_out is None:
            expected = {OUTPUT: self.op.oracle(inputs)}
        else:
            output, gradients = self.op.results(inputs, grad_out)
            expected = {f"d{name}": gradients[name] for name in self.op.differentiable}
            # float32 halves the memory. Its rounding is far below an honest result's error.
            expected[OUTPUT] = output.float()
        self.expected.append(expected)
        tensors = [*inputs.tensors.values(), *expected.values(), grad_out]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def draw(self, seed: int) -> tuple[Inputs, Tensor | None]:
        return draw(self.case, seed, self._device, self._probe)

    @property
    def form(self) -> Form:
        shapes = {name: list(tensor.shape) for name, tensor in self.expected[0].items()}
        return Form(sets=len(self.expected), dtype=self.case.dtype, results=shapes)


def _count_free_bytes() -> int:
    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def _count_sets(case: Case, wanted: int, each: int, free: int) -> int:
    least = 2  # with one set, a remembered output would look like a computed one
    if least * each > free * MOST_OF_MEMORY:
        raise Failure(
            Status.OUT_OF_MEMORY,
            f"{least} sets of inputs and their oracles take {least * each / 1e9:.1f} GB of the "
            f"{free / 1e9:.1f} GB that are free",
        )
    return max(least, min(wanted, int(free * MEMORY_SHARE // max(each, 1))))


@dataclass(frozen=True)
class KeptResult:
    name: str
    result: Tensor
    delivery: Delivery


@dataclass
class ErrorTally:
    """The first reason, if any, why an implementation is wrong, and the errors of its calls."""

    computes: str
    reason: str = ""
    is_forged: bool = False  # the reason is a delivery that cannot be checked
    errors: Errors | None = None
    worst: KeptResult | None = None  # for the diagnosis

    @property
    def status(self) -> Status:
        if not self.reason:
            return Status.OK
        return Status.CRASHED if self.is_forged else Status.WRONG


@dataclass
class OutputJudge:
    """Judges one case at a time: `prepare`, then `check` for each delivery, then `conclude`."""

    device: str
    mailbox: Mailbox
    diagnosis_s: float = TIME_LIMIT_S  # seconds of CPU time for each implementation
    _oracles: dict[tuple[str, str], Oracles] = field(default_factory=dict)  # by op and probe
    tallies: dict[str, ErrorTally] = field(default_factory=dict)  # by implementation

    def prepare(self, request: Prepare) -> Prepared:
        self._forget()
        failures = {}
        for computes in request.computes:
            try:
                case = ops.computed(request.case, computes)
                self._oracles[computes, ""] = Oracles(case, request.seeds, self.device)
            except UsageError as error:
                failures[computes] = NoOracle(status=Status.UNSUPPORTED, reason=str(error))
            except Failure as failure:
                failures[computes] = NoOracle(status=failure.status, reason=failure.reason)
            except (MemoryError, torch.OutOfMemoryError) as error:
                reason = f"its oracle does not fit into memory: {str(error).splitlines()[0]}"
                failures[computes] = NoOracle(status=Status.OUT_OF_MEMORY, reason=reason)
        forms = {computes: oracles.form for (computes, _), oracles in self._oracles.items()}
        prepared = Prepared(forms=forms, failures=failures)
        if request.probes and "" in forms:
            self._prepare_probes(request, prepared)
        self.mailbox.map(prepared.nbytes)
        self._free_memory()
        return prepared

    def _prepare_probes(self, request: Prepare, prepared: Prepared) -> None:
        try:
            probes = ops.probes(request.case)
        except Exception as error:  # noqa: BLE001 - a user's op; the case can do without probes
            sys.stderr.write(f"the probes of {request.case.op} are left out: {error!r}\n")
            return
        for name, probe in probes.items():
            try:
                oracles = Oracles(request.case, request.seeds[:1], self.device, probe)
            except (Failure, MemoryError, torch.OutOfMemoryError) as error:
                sys.stderr.write(f"the probe with {name} is left out: {error}\n")
                continue
            self._oracles["", name] = oracles
            prepared.probes[name] = oracles.form

    def check(self, delivery: Delivery) -> Checked:
        tally = self.tallies.setdefault(delivery.implementation, ErrorTally(delivery.computes))
        if flaw := self._find_flaw(delivery, tally):
            if not tally.reason:
                tally.is_forged = True
                tally.reason = f"its process delivered a result that cannot be checked: {flaw}"
            return Checked(right=False)
        results = self.mailbox.take(self._find_oracles(delivery).form, self.device)
        errors = [] if tally.errors is None else [tally.errors]
        try:
            for name, result in results.items():
                errors.append(self._compare(tally, KeptResult(name, result, delivery)))
        except WrongValues as wrong:
            tally.reason = tally.reason or delivery.when + str(wrong)
            tally.errors = wrong.errors
            return Checked(right=False)
        if not delivery.probe:
            tally.errors = Errors.worst(errors)
        return Checked(right=True)

    def _find_flaw(self, delivery: Delivery, tally: ErrorTally) -> str:
        """Return why a delivery, which may be forged, cannot be checked, or an empty text."""
        oracles = self._oracles.get((delivery.computes, delivery.probe))
        if oracles is None or delivery.computes != tally.computes:
            return f"there is no oracle of {delivery.computes[:40]!r}"
        for number in (delivery.set, delivery.previous or 0):
            if not 0 <= number < len(oracles.expected):
                return f"there is no set {number} of inputs"
        if delivery.factor not in FACTORS:
            return f"the gradient of an output is never multiplied by {delivery.factor:g}"
        return ""

    def _compare(self, tally: ErrorTally, result: KeptResult) -> Errors:
        delivery = result.delivery
        oracles = self._find_oracles(delivery)
        expected = oracles.expected[delivery.set][result.name]
        factor = 1.0 if result.name == OUTPUT else delivery.factor
        compared = result.name, result.result, expected, oracles.case, factor
        try:
            errors = compare.check_values(*compared, probe=bool(delivery.probe))
        except WrongValues:
            tally.worst = result
            raise
        # If rounding does not explain the worst row, `check_parity` later finds the record wrong.
        # The diagnosis is made before that, in `conclude`, so the result is kept.
        is_rounding = delivery.probe or compare.is_rounding(errors, oracles.case)
        if tally.worst is None and not is_rounding:
            tally.worst = result
        return errors

    def conclude(self, diagnosed: Collection[str]) -> Concluded:
        """Judge each implementation, diagnose those in `diagnosed`, and forget the case."""
        judged = {
            name: self._judge(tally, name in diagnosed)
            for name, tally in self.tallies.items()
            if tally.reason or tally.errors is not None  # else it was right on probes only
        }
        self._forget()
        self.mailbox.close()
        return Concluded(judged=judged)

    def _judge(self, tally: ErrorTally, is_diagnosed: bool) -> Judged:
        errors = {} if tally.errors is None else asdict(tally.errors)
        element = self._describe_element(tally.worst) if is_diagnosed else ""
        diagnosis = self._diagnose(tally) if is_diagnosed else Diagnosis()
        return Judged(
            status=tally.status,
            reason=tally.reason,
            diagnosis=diagnosis.text,
            diagnosis_id=diagnosis.id,
            worst_element=element,
            **{
                name: value
                for name, value in errors.items()
                if not isinstance(value, float) or math.isfinite(value)
            },
        )

    def _describe_element(self, kept: KeptResult | None) -> str:
        if kept is None:
            return ""
        delivery = kept.delivery
        expected = self._find_oracles(delivery).expected[delivery.set][kept.name]
        factor = 1.0 if kept.name == OUTPUT else delivery.factor
        return compare.describe_worst(kept.name, kept.result, expected * factor)

    def _diagnose(self, tally: ErrorTally) -> Diagnosis:
        kept, tally.worst = tally.worst, None
        if kept is None:
            return Diagnosis()
        name, result, delivery = kept.name, kept.result, kept.delivery
        oracles = self._find_oracles(delivery)
        before = delivery.previous
        previous = None if before is None else oracles.expected[before][name]
        inputs, grad_out = oracles.draw(oracles.seeds[delivery.set])
        if grad_out is None or name == OUTPUT:
            found = diagnose(oracles.op, inputs, result, previous, self.diagnosis_s)
        else:
            right = oracles.expected[delivery.set][name] * delivery.factor
            given = inputs, grad_out, name, result, right, previous
            found = diagnose_gradient(oracles.op, *given, self.diagnosis_s)
        if delivery.probe == STRIDED and found.id in ("not-finite", "unexplained"):
            found = mistake("strides-ignored", found=found.mistake)
        return found.surrounded(f"with {delivery.probe}, ") if delivery.probe else found

    def _find_oracles(self, delivery: Delivery) -> Oracles:
        return self._oracles[delivery.computes, delivery.probe]

    def _forget(self) -> None:
        self._oracles.clear()
        self.tallies.clear()
        self._free_memory()

    def _free_memory(self) -> None:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
