"""How long a merge of many shards takes, and how much memory: a script, not a test.

    python -m tests.fleet.size SHARD FOLDER COUNT COPIES

makes COUNT shards in FOLDER, each with real plan, journal, seals and signature over COPIES of what
the real SHARD 1/n measured; then merge them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.assessment import parquet
from nsabench.assessment.results import assemble
from nsabench.evidence.manifest import seal
from nsabench.execution import journal
from nsabench.execution.chain import Sealer
from nsabench.execution.journal import Journal
from nsabench.execution.vouch import digest
from nsabench.machine.environment.identity import machine_of
from nsabench.model.journal import Contents
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import PassName
from nsabench.signing import Signer


def many(
    run: Path, folder: Path, numbers: Sequence[int], count: int, copies: int, signer: Signer
) -> None:
    """Shards `numbers` of `count`, each of what a real run measured, `copies` times, as if on other
    numbers of rows, in folders of their number."""
    plan, contents = Plan.read(run / "plan.yaml"), journal.read(run / "journal.jsonl")
    environment = (run / "environment.json").read_bytes()
    whole = " ".join(
        _other(planned, number, copy).id
        for number in range(1, count + 1)
        for planned in plan.cases
        for copy in range(copies)
    )
    for number in numbers:
        cases = {
            (planned.id, copy): _other(planned, number, copy)
            for planned in plan.cases
            for copy in range(copies)
        }
        own = plan.model_copy(
            update={
                "run_id": f"20260101T000000Z-{number:06d}",
                "shard": f"{number}/{count}",
                "whole": whole,
                "cases": list(cases.values()),
            }
        )
        _write(folder / str(number), own, contents, environment, cases, copies, signer)


def _other(planned: PlannedCase, number: int, copy: int) -> PlannedCase:
    shape = {**planned.case.shape, "N": 4 + 10 * number + copy}
    case = planned.case.model_copy(update={"shape": shape})
    case = type(case).model_validate(case.model_dump())
    return planned.model_copy(update={"id": case.id, "case": case})


def _write(
    folder: Path,
    plan: Plan,
    contents: Contents,
    environment: bytes,
    cases: Mapping[tuple[str, int], PlannedCase],
    copies: int,
    signer: Signer,
) -> None:
    (folder / "logs").mkdir(parents=True)
    plan = Plan.model_validate(plan.model_dump())
    plan.write(folder / "plan.yaml")
    (folder / "environment.json").write_bytes(environment)
    written = Journal(folder / "journal.jsonl")
    header = contents.headers[0]
    machine = machine_of(plan.run_id, header.described)
    written.begin(Sealer(signer, plan.run_id, plan.sha256, machine))
    changed: dict[str, Any] = {
        "run_id": plan.run_id,
        "plan_sha256": plan.sha256,
        "environment_sha256": digest(folder / "environment.json"),
    }
    written.append(header.model_copy(update=changed))
    for entry in contents.entries:
        if entry.pass_name is PassName.CANARY:
            written.append(entry)
            continue
        for copy in range(copies):
            written.append(entry.model_copy(update={"case_id": cases[entry.case_id, copy].id}))
    written.close()
    results = assemble(plan, journal.read(folder / "journal.jsonl"))
    parquet.write(results, plan.run_id, folder)
    seal(folder, signer)


if __name__ == "__main__":
    count, copies = map(int, sys.argv[3:])
    key = Signer(Ed25519PrivateKey.generate(), ephemeral=False)
    many(Path(sys.argv[1]), Path(sys.argv[2]), range(1, count + 1), count, copies, key)
