"""A run passes or fails by its trust level, the required level and the trusted keys."""

import itertools
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import MANIFEST, seal, verify
from nsabench.evidence.manifest.seal import describe
from nsabench.evidence.manifest.statement import Library, Trust
from nsabench.evidence.manifest.verify import read_plan
from nsabench.model.plan import LibraryRelease, Plan
from nsabench.model.source import Source
from nsabench.signing import Signer, load_signer
from nsabench.verdicts.tables import read_records
from tests.commands import nsabench as nsabench
from tests.runs import Made, make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a run of each trust level, with the keys to trust."""
    made = {}
    for level in Trust:
        signer = Signer(Ed25519PrivateKey.generate(), ephemeral=level is Trust.EPHEMERAL)
        run = make_run(tmp_path_factory.mktemp(level) / "run", signer=signer)
        if level is not Trust.UNSIGNED:
            seal(run, signer)
        made[level] = run, frozenset({signer.keyid} if level is Trust.PINNED else ())
    return made


@pytest.mark.parametrize(("level", "required"), list(itertools.product(Trust, Trust)))
def test_a_run_passes_where_its_level_is_enough(runs, level, required):
    run, trusted = runs[level]
    report = verify(run, trusted=trusted, require=required)
    if level.reaches(required):
        assert report.broken is None and report.trust is level
    elif level is Trust.UNSIGNED:
        assert report.broken == f"manifest: {MANIFEST} is missing: the run is unsigned"
    else:
        assert all(word in report.broken for word in ("trust", level, required))
        assert ("--key" in report.remedy) is (level is Trust.UNPINNED)
        assert ("a lasting key" in report.remedy) is (level is Trust.EPHEMERAL)


def test_an_unfinished_run_is_to_be_finished(tmp_path):
    signer = Signer(Ed25519PrivateKey.generate(), ephemeral=False)
    run = make_run(tmp_path / "run", signer=signer)
    assert f"`nsabench all --resume {run}`" in verify(run).remedy
    log = run / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"status":"ok"', b'"status":"no"', 1))
    assert "--resume" not in verify(run).remedy


def test_what_the_command_requires(run, tmp_path, nsabench, made):
    """Without `--require`, the level is ephemeral, or pinned if `--key` is given."""
    public = tmp_path / "k.key.pub"
    assert nsabench("verify", run).returncode == 0
    done = nsabench("verify", run, "--key", public)
    assert done.returncode == 4 and "at least pinned is required" in done.stderr
    assert nsabench("verify", run, "--key", public, "--require", "unpinned").returncode == 0
    (run / MANIFEST).unlink()
    assert nsabench("verify", run).returncode == 4
    assert nsabench("verify", run, "--require", "unsigned").returncode == 0


def test_the_plan_in_brief_says_what_op_and_libraries_were(tmp_path):
    called = LibraryRelease(package="fla-core", version="0.6.0", licence="MIT")
    run = make_run(tmp_path / "run", Made(origin=called))
    plan = Plan.read(run / "plan.json")
    digest = "a" * 64
    bound = {"ops": "/somewhere/op.py", "ops_sha256": digest}
    bound["sources"] = {**plan.sources, Source.from_digest(Path("op.py"), digest): digest}
    plan.model_copy(update=bound).write(run / "plan.json")
    predicate = describe(run, load_signer({})).predicate
    assert predicate.plan.ops_sha256 == digest
    assert predicate.plan.packages == {"fla-core": Library(version="0.6.0", licence="MIT")}
    assert read_plan(run, predicate).ops_sha256 == digest
    for lie in ({"ops_sha256": ""}, {"ops_sha256": "b" * 64}, {"packages": {}}):
        brief = predicate.plan.model_copy(update=lie)
        with pytest.raises(VerificationFailed, match=r"plan\.json is"):
            read_plan(run, predicate.model_copy(update={"plan": brief}))
    of_baseline = {
        (r.package, r.package_version, r.licence)
        for r in read_records(run)
        if r.implementation == "sdpa_gqa"
    }
    assert of_baseline == {("fla-core", "0.6.0", "MIT")}
