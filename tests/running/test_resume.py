"""Going on with a run whose cases are all measured, and second processes are still to come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.cli import group
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.model.description import Described
from nsabench.model.job import Job
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose, Role
from nsabench.running import run
from nsabench.running.clients import CheckerClient, WorkerClient
from nsabench.running.log import read
from nsabench.running.process import Printed
from nsabench.signing import Signer
from nsabench.worker.protocol import Measured
from tests.runs import Made, make_run, timed

ONE = Made(lengths=(64,), shapes=((256, 4, 64),))


ME = Signer(Ed25519PrivateKey.generate(), ephemeral=False)


class Elsewhere:
    """The executor, and its worker, on another machine."""

    gpu = "NVIDIA GeForce RTX 4090"
    asked: list[str]

    is_clean = False
    log = Printed()

    def __init__(self, plan: Plan, worker: WorkerClient, checker: CheckerClient) -> None:
        self.worker = self

    def describe(self) -> Described:
        return Described(
            software={"torch": ONE.torch, "triton": ONE.triton}, device={"name": self.gpu}
        )

    def measure_ceilings(self) -> Ceilings:
        return Ceilings()

    def run(self, job: Job) -> Measured:
        self.asked.append(job.case.id)
        rng = np.random.default_rng(1)
        return Measured(observations=[timed(n, 0.2, ONE, rng) for n in job.implementations])

    def close(self) -> None: ...


class Silent:
    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(Elsewhere, "asked", made, raising=False)
    monkeypatch.setattr("nsabench.running.loop.Executor", Elsewhere)
    return made


def two_sources(plan: Plan) -> Plan:
    infos = [
        i.model_copy(update={"source": "mine.py" if i.role is Role.CANDIDATE else "pkg"})
        for i in plan.implementations
    ]
    sources = {"mine.py": "a", "pkg": "b"}
    return plan.model_copy(update={"implementations": infos, "sources": sources})


def unfinished(folder: Path, ratio: float) -> Path:
    """All cases measured on an H200, nothing after them; the baseline of a source of its own."""
    made = Made(lengths=ONE.lengths, shapes=ONE.shapes, ratio=lambda _: ratio)
    return make_run(folder, made, signer=ME, change=two_sources)


@pytest.mark.parametrize(("ratio", "what"), [(1.2, "confirmation"), (1.5, "apart")])
def test_what_is_still_to_measure_is_not_measured_on_another_machine(
    tmp_path: Path, asked: list[str], ratio: float, what: str
) -> None:
    folder = unfinished(tmp_path / "run", ratio)
    with pytest.raises(UsageError, match="begun on device NVIDIA H200 and cannot go on with"):
        run.resume(folder, Silent(), signer=ME)
    assert asked == [], what
    log = read(folder / "log.jsonl")
    assert {attempt.job.purpose for attempt in log.attempts} == {Purpose.MAIN}
    assert len(log.sessions) == 1


def test_on_the_same_machine_it_goes_on(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elsewhere, "gpu", ONE.gpu)
    folder = unfinished(tmp_path / "run", 1.5)
    run.resume(folder, Silent(), signer=ME)
    log = read(folder / "log.jsonl")
    made = {
        purpose: [a.job.case.id for a in log.attempts if a.job.purpose is purpose]
        for purpose in Purpose
    }
    assert made[Purpose.ISOLATED] == asked == made[Purpose.MAIN]
    assert len(log.sessions) == 2


def test_nothing_left_to_measure_asks_no_machine(tmp_path: Path, asked: list[str]) -> None:
    run.resume(unfinished(tmp_path / "run", 0.5), Silent(), signer=ME)
    assert asked == []


def test_the_environment_is_what_the_machine_was_before_it_was_calibrated(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibration loads the device, so afterwards the device looks as if another program kept it
    busy."""
    plan = Plan.read(unfinished(tmp_path / "before", 1.5) / "plan.json")
    folder = tmp_path / "run"
    seen: list[bool] = []

    def measure_ceilings(executor: Elsewhere) -> None:
        seen.append((folder / "environment.json").exists())
        raise EnvironmentRefused("enough was seen")

    monkeypatch.setattr(Elsewhere, "measure_ceilings", measure_ceilings, raising=False)
    with pytest.raises(EnvironmentRefused, match="enough was seen"):
        run.start(plan, folder, Silent(), signer=ME)
    assert seen == [True]


def test_a_machine_that_is_unfit_is_not_measured_on(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan.read(unfinished(tmp_path / "before", 1.5) / "plan.json")
    folder = tmp_path / "run"
    with pytest.raises(EnvironmentRefused, match=r"torch 2\.11\.0 was built without CUDA"):
        run.start(plan, folder, Silent(), signer=ME, fit=True)
    assert not folder.exists()
    run.start(plan, folder, Silent(), signer=ME, fit=False)
    assert asked


@pytest.mark.parametrize(("name", "fit"), [("all", True), ("run", False)])
def test_all_looks_at_the_machine_first_and_run_does_not(
    monkeypatch: pytest.MonkeyPatch, name: str, fit: bool
) -> None:
    seen: list[bool] = []

    def start(plan: Plan, out: Path | None, view: object, *, fit: bool, **others: object) -> None:
        seen.append(fit)
        raise EnvironmentRefused("enough was seen")

    monkeypatch.setattr(run, "start", start)
    CliRunner().invoke(group, [name, "quick", "--device", "cpu"])
    assert seen == [fit]
