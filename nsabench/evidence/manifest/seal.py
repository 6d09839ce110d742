"""Sign a finished run."""

from datetime import UTC, datetime
from pathlib import Path

from nsabench.evidence.manifest import dsse, files
from nsabench.evidence.manifest.statement import (
    NOT_SIGNED,
    Digest,
    EnvironmentBrief,
    Library,
    PlanBrief,
    Predicate,
    ShardSigned,
    SignedBy,
    Statement,
    Subject,
    Trust,
    encode_key,
    read_envelope,
    verify_envelope,
)
from nsabench.evidence.manifest.tables import summarize_tables
from nsabench.files import whole
from nsabench.machine.environment.model import Environment
from nsabench.model.plan import Plan
from nsabench.model.record import SCHEMA_VERSION
from nsabench.running.folder import MANIFEST, RunFolder
from nsabench.signing import Signer
from nsabench.signing.keys import public_der


def seal(folder: Path, signer: Signer) -> Statement:
    """Sign all files of a run. Raises `VerificationFailed` if another file is in the folder."""
    RunFolder(folder).refuse_foreign()
    statement = describe(folder, signer)
    whole(folder / MANIFEST, dsse.sign(statement.to_json(), signer.key).to_json())
    return statement


def describe(folder: Path, signer: Signer) -> Statement:
    plan = Plan.read(folder / "plan.json")
    return Statement(
        subject=[
            Subject(name=name, digest=Digest(sha256=files.sha256(folder, name)))
            for name in files.listing(folder)
            if name not in NOT_SIGNED
        ],
        predicate=Predicate(
            run_id=plan.run_id,
            signed=datetime.now(UTC).replace(microsecond=0),
            signer=SignedBy(
                keyid=signer.keyid,
                public_key=encode_key(public_der(signer.key.public_key())),
                trust=Trust.EPHEMERAL if signer.ephemeral else Trust.UNPINNED,
            ),
            plan=brief_plan(plan),
            environment=brief_environment(folder / "environment.json"),
            results_schema=SCHEMA_VERSION,
            shards=brief_shards(folder, plan),
            **summarize_tables(folder),
        ),
    )


def brief_plan(plan: Plan) -> PlanBrief:
    return PlanBrief(
        created=plan.created,
        nsabench=plan.nsabench,
        device=plan.device,
        shard=plan.shard,
        matrices={m.name: m.sha256 for m in plan.matrices},
        kernels_sha256=plan.kernels_sha256,
        ops_sha256=plan.ops_sha256,
        packages={o.package: Library(version=o.version, licence=o.licence) for o in plan.origins},
        cases=len(plan.cases),
    )


def brief_shards(folder: Path, plan: Plan) -> tuple[ShardSigned, ...]:
    shards = (RunFolder(folder).shard(run_id).path for run_id in plan.shards)
    return tuple(verify_envelope(read_envelope(shard))[0].predicate.as_shard for shard in shards)


def brief_environment(path: Path) -> EnvironmentBrief:
    try:
        environment = Environment.read(path)
    except (OSError, ValueError):
        # The manifest then says that the environment is not known.
        return EnvironmentBrief(complete=False)
    return brief_of(environment)


def brief_of(environment: Environment) -> EnvironmentBrief:
    software, gpu = environment.software, environment.gpu
    return EnvironmentBrief(
        complete=environment.complete,
        gpu=gpu.name if gpu else None,
        sm=gpu.sm if gpu else None,
        driver=environment.driver.version,
        python=software.python,
        torch=software.torch,
        triton=software.triton,
        cuda=software.torch_cuda,
        combo=environment.container.combo,
        image_digest=environment.container.image_digest,
        commits=environment.run.commits,
    )
