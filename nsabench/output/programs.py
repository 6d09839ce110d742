"""Define the JSON documents of `all`, `check`, `compare` and `doctor`, with common field names.

docs/reference/json.schema.json is made from these models. Within a version, fields are only added.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from nsabench.machine.doctor.problem import MachineProblem
from nsabench.machine.environment.model import Environment
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role, Status, Verdict
from nsabench.output.compare.shift import Shift


class Data(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class JsonDocument(Data):
    """`error` says why nothing was done (or is empty), and `remedy` what to do about it."""

    version: Literal[3] = 3
    exit_code: int
    error: str = ""
    remedy: str = ""


class Outcome(Data):
    """One implementation on one case, in the words of records.parquet.

    Times are medians of a call. speedup: the time of best_baseline over the implementation's time,
    in `regime`, with its 95 % interval.
    """

    status: Status | Literal["missing"]
    reason: str = ""
    diagnosis: str = ""
    median_ms: float | None = None
    queue_median_ms: float | None = None
    best_baseline: str = ""
    speedup: float | None = None
    speedup_lo: float | None = None
    speedup_hi: float | None = None
    verdict: Verdict | None = None
    regime: Regime | None = None
    caution: str = ""

    @classmethod
    def values_of(cls, record: Record) -> dict[str, Any]:
        names = Outcome.model_fields.keys() - {"queue_median_ms", "caution"}
        values = {name: getattr(record, name) for name in names}
        queued = record.median_in(Regime.QUEUE)
        return values | {"queue_median_ms": queued, "caution": record.caution_in(record.regime)}


class Named(Data):
    case_id: str
    case: str
    op: str
    implementation: str


class CheckedKernel(Named, Outcome):
    """If the kernel failed, `log` has what the case's kernels printed, and the traceback."""

    right: bool
    diagnosis_id: str
    worst_element: str
    rel_l2: float | None
    host_us: float | None
    baseline_ms: float | None
    baseline_queue_ms: float | None
    log: str


class Candidate(Named, Outcome):
    dtype: str
    direction: str
    distribution: str
    mode: str
    length: int
    shape: dict[str, int | None]
    package: str
    package_version: str
    licence: str


class ComparedRun(Data):
    name: str
    run_id: str
    created: str
    trust: str
    objection: str
    versions: dict[str, str]
    unpaired: str


class ComparedCase(Named):
    """`runs` has an outcome for each run; `later` compares each later run with the first."""

    role: Role
    runs: list[Outcome]
    later: list[Shift]


class CheckDocument(JsonDocument):
    command: Literal["check"] = "check"
    answers: list[CheckedKernel] = []


class RunDocument(JsonDocument):
    """`thresholds` is what thresholds.yaml holds, or null if nothing is decided."""

    command: Literal["all"] = "all"
    run_id: str
    folder: str
    wall_s: float
    failures: list[str]
    controls: dict[Catch, int]
    candidates: list[Candidate]
    thresholds: dict[str, Any] | None
    signature: str


class CompareDocument(JsonDocument):
    command: Literal["compare"] = "compare"
    band: float
    disagreements: list[str]
    runs: list[ComparedRun]
    cells: list[ComparedCase]


class DoctorDocument(JsonDocument):
    command: Literal["doctor"] = "doctor"
    problems: list[MachineProblem]
    environment: Environment


def schema() -> dict[str, Any]:
    """Return the JSON schema of all documents. `command` tells them apart."""
    models = (CheckDocument, RunDocument, CompareDocument, DoctorDocument)
    references, definitions = models_json_schema([(model, "serialization") for model in models])
    any_of = [references[model, "serialization"] for model in models]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "nsabench --json"}
    return {**head, "anyOf": any_of, **definitions}
