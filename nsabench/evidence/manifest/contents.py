"""Check that plan, environment and log of a run agree with each other and with the manifest.

Hashes show that nothing changed since the signature; these checks, and those of the tables, show
that what was signed is a whole run. Each takes a folder and the signed predicate, and raises
`VerificationFailed`.
"""

from __future__ import annotations

from pathlib import Path

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest.logs import Logged
from nsabench.evidence.manifest.same import same
from nsabench.evidence.manifest.seal import brief_of, brief_plan
from nsabench.evidence.manifest.statement import Predicate
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.pairs import belongs
from nsabench.model.plan import Plan
from nsabench.reading import OutOfBounds


def read_plan(folder: Path, predicate: Predicate | None) -> Plan:
    """Return the plan. Reading it hashes its cases to their ids again."""
    try:
        plan = Plan.read(folder / "plan.json")
    except UsageError as error:
        raise VerificationFailed(f"plan.json: {error}") from None
    if predicate is not None:
        same("plan.json: run_id", plan.run_id, predicate.run_id)
        same("plan.json", brief_plan(plan), predicate.plan)
    return plan


def check_environment(folder: Path, predicate: Predicate | None) -> Environment:
    try:
        environment = Environment.read(folder / "environment.json")
    except OSError as error:
        raise VerificationFailed(f"environment.json cannot be read: {error.strerror}") from None
    except OutOfBounds as error:
        raise VerificationFailed(f"environment.json {error}") from None
    if predicate is not None:
        there = brief_of(environment)
        for name, stated in predicate.environment:
            same(f"environment.json: {name}", getattr(there, name), stated)
    return environment


def describe_environment(environment: Environment) -> str:
    """Return for example `complete; unpaired: this torch belongs with triton 3.7.1`."""
    brief = brief_of(environment)
    other = belongs(brief.torch, brief.triton)
    said = "complete" if environment.complete else "not complete"
    return f"{said}; {other}" if other else said


def check_origin(plan: Plan, logged: Logged, predicate: Predicate | None) -> None:
    """Check that the key that signed is the one that measured. Of a merged run that is checked for
    each shard."""
    if predicate is not None and not plan.shards:
        signed = predicate.signer.keyid
        same("log.jsonl: the key that it is signed with", logged.origin.keyid, signed)
