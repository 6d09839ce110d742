"""Shards are merged into one run that a reader can verify, or are refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench import conclusion
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.archive.archive import Archive
from nsabench.evidence.manifest import MANIFEST, seal, verify
from nsabench.evidence.manifest.statement import Trust, encode_key, read_envelope, verify_envelope
from nsabench.fleet.merge import merge
from nsabench.model.case import Case
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Verdict
from nsabench.output import site
from nsabench.output.report import Facts, write_html
from nsabench.output.terminal.summary import describe_end
from nsabench.running.folder import KEPT, RunFolder
from nsabench.signing import Signer
from nsabench.signing.keys import private_pem, public_der
from nsabench.signing.signer import KEY_FILE
from nsabench.verdicts.results import CANARY
from nsabench.verdicts.tables import read_records
from nsabench.verdicts.threshold import decide_run
from tests.commands import invoke
from tests.evidence.manifest.test_tamper import resign
from tests.runs import Made, make_run

COUNT = 3
FAST = Made(ratio=lambda _: 2.0)


@pytest.fixture(scope="module")
def signer():
    return Signer(Ed25519PrivateKey.generate(), ephemeral=False)


def shard(folder, signer, index, made=FAST, count=COUNT):
    """Make and sign one shard of a plan."""
    own = replace(made, shard=f"{index}/{count}", run_id=f"shard-{index}", seed=index)
    run = make_run(folder / f"s{index}", own, signer=signer)
    seal(run, signer)
    return run


@pytest.fixture(scope="module")
def _made(tmp_path_factory, signer):
    folder = tmp_path_factory.mktemp("shards")
    for index in range(1, COUNT + 1):
        shard(folder, signer, index)
    return folder


@pytest.fixture(scope="module")
def _merged(tmp_path_factory, signer, _made):
    out = tmp_path_factory.mktemp("merged") / "whole"
    merge(sorted(_made.iterdir()), out, signer)
    return out


@pytest.fixture
def shards(tmp_path, _made):
    """Return copies of the three shards of a plan, which a test may damage."""
    return sorted(Path(shutil.copytree(_made, tmp_path / "shards")).iterdir())


def merged(shards, signer):
    out = shards[0].parent / "whole"
    finished, _ = merge(shards, out, signer)
    return finished.results, out


def find_outliers(found):
    """Return the sentence about the only shard whose times decide nothing."""
    [sentence] = {f.sentence for f in found.findings if f.check == CANARY}
    return sentence


def verdicts(folder):
    return {r.key: r.verdict for r in read_records(folder)}


def test_a_merged_run_verifies_and_says_what_its_shards_say(shards, signer):
    found, out = merged([shards[2], shards[0], shards[1]], signer)
    report = verify(out, trusted=[signer.keyid], require=Trust.PINNED)
    assert report.broken is None
    assert signer.keyid in report.details["origin"]
    each = [verdicts(s) for s in shards]
    assert verdicts(out) == each[0] | each[1] | each[2]
    assert len(found.records) == sum(map(len, each)) == 16 * 3
    assert not list(shards[0].parent.glob(".whole*"))
    assert (out / "report.html").is_file() and (out / "selection_report.md").is_file()


def test_an_archive_counts_a_shard_of_a_merged_run_once(tmp_path, _made, _merged):
    pytest.importorskip("duckdb")
    from nsabench.evidence.archive.query import query

    first, *others = sorted(_made.iterdir())
    archive = Archive(str(tmp_path / "archive"), create=True)
    sql = "SELECT run_id, count(*) AS n FROM records JOIN runs USING (run_id) GROUP BY 1"
    archive.add(first)
    assert query(archive, sql).to_pylist() == [{"run_id": "shard-1", "n": len(read_records(first))}]
    for run in (_merged, *others):
        archive.add(run)
    [row] = query(archive, sql).to_pylist()
    assert row == {"run_id": Plan.read(_merged / "plan.json").run_id, "n": 16 * 3}
    page = site.write([archive.store.location], tmp_path / "site")
    assert [folder.name for folder in (page.parent / "pages").iterdir()] == [row["run_id"]]


def test_a_merge_without_a_key_says_how_to_sign(tmp_path, _made, signer):
    other = Signer(Ed25519PrivateKey.generate(), ephemeral=True)
    finished, sentence = merge(sorted(_made.iterdir()), tmp_path / "other", other)
    assert KEY_FILE in sentence
    assert "sum of its shards" in describe_end(finished)[0].text
    _, sentence = merge(sorted(_made.iterdir()), tmp_path / "whole", signer)
    assert KEY_FILE not in sentence


def test_a_merged_run_keeps_what_each_host_signed(_made, _merged):
    statement, _ = verify_envelope(read_envelope(_merged))
    named = [own.run_id for own in statement.predicate.shards]
    assert named == ["shard-1", "shard-2", "shard-3"]
    for own in sorted(_made.iterdir()):
        kept = _merged / "shards" / Plan.read(own / "plan.json").run_id
        assert {path.name for path in kept.iterdir()} == set(KEPT)
        assert all((kept / name).read_bytes() == (own / name).read_bytes() for name in KEPT)
    assert not (_merged / "log.jsonl").exists()


def test_what_is_derived_again_is_what_was_written(_merged, tmp_path):
    written = conclusion.derive(Facts.read(_merged), tmp_path)
    assert {path.name: path.read_bytes() for path in written} == {
        path.name: (_merged / path.name).read_bytes() for path in written
    }


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_merged_run_is_not_begun_anew(_merged, tmp_path, is_signed):
    """A merged run has no log of its own, and holds all that was measured."""
    out = shutil.copytree(_merged, tmp_path / "whole")
    if not is_signed:
        (out / MANIFEST).unlink()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = Plan.read(out / "plan.json").model_copy(update={"margin": 9.0})
    nobody = None  # the observer, which is not called
    with pytest.raises(UsageError, match="margin differ"):
        conclusion.reopen(out, nobody, plan=other)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_merged_run_decides_as_the_whole_would(tmp_path, _merged):
    [decision] = decide_run(read_records(_merged), Plan.read(_merged / "plan.json"))
    whole = make_run(tmp_path / "one", FAST)
    [alone] = decide_run(read_records(whole), Plan.read(whole / "plan.json"))
    assert (decision.min_length, decision.tested) == (alone.min_length, alone.tested) == (64, 16)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"gpu": "NVIDIA L4"}, "NVIDIA L4"),
        ({"torch": "2.12.1"}, "torch"),
        ({"sources": {"x": "b" * 64}}, "sources"),
        ({"margin": 1.5}, "margin"),
        ({"lengths": (64, 128)}, "whole"),
    ],
)
def test_shards_that_were_not_measured_alike_are_refused(tmp_path, shards, signer, other, said):
    odd = shard(tmp_path / "odd", signer, 3, replace(FAST, **other))
    with pytest.raises(UsageError, match=said):
        merged([*shards[:2], odd], signer)


def test_shards_that_are_missing_twice_or_whole_are_refused(tmp_path, shards, signer):
    again = Path(shutil.copytree(shards[1], tmp_path / "again"))
    whole = make_run(tmp_path / "one", FAST, signer=signer)
    seal(whole, signer)
    for given, named in (
        ([shards[0], shards[2]], "2/3"),
        ([*shards, again], str(again)),
        ([whole], str(whole)),
    ):
        with pytest.raises(UsageError) as refused:
            merged(given, signer)
        assert named in str(refused.value)
        assert not (given[0].parent / "whole").exists()


def test_a_shard_that_was_altered_or_is_not_trusted_is_refused(shards, signer):
    with pytest.raises(VerificationFailed, match="pinned is required"):
        merge(shards, shards[0].parent / "whole", signer, require=Trust.PINNED)
    with (shards[1] / "log.jsonl").open("a") as log:
        log.write("\n")
    with pytest.raises(VerificationFailed, match=r"log\.jsonl was changed"):
        merged(shards, signer)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, signer):
    """Return a merged run with one shard that another key signed, and that key."""
    folder = tmp_path_factory.mktemp("mixed")
    unknown = Signer(Ed25519PrivateKey.generate(), ephemeral=True)
    made = [shard(folder, unknown if i == 2 else signer, i) for i in range(1, COUNT + 1)]
    merge(made, folder / "whole", signer)
    return folder / "whole", unknown


def test_a_merged_run_is_trusted_as_far_as_its_least_shard(mixed, signer, tmp_path):
    out, _ = mixed
    report = verify(out, trusted=[signer.keyid])
    assert (report.broken, report.trust) == (None, Trust.EPHEMERAL)
    assert "ephemeral" in report.details["origin"]
    signers = [row[6] for row in told(out)]  # in the report that the merge wrote
    assert [signer.keyid in text for text in signers] == [True, False, True]
    assert signer.keyid in Facts.read(out).trust
    assert verify(out, trusted=[signer.keyid], require=Trust.PINNED).broken is not None
    archive = Archive(str(tmp_path / "archive"), create=True)
    archive.add(out, trusted=[signer.keyid])
    assert [run.trust for run in archive.runs(frozenset([signer.keyid]))] == [Trust.EPHEMERAL]


def test_the_key_of_a_shard_can_be_revoked(mixed, tmp_path, monkeypatch):
    out, unknown = mixed
    archive = Archive(str(tmp_path / "archive"), create=True)
    archive.add(out)
    revoked = tmp_path / "revoked"
    revoked.write_text(f"{unknown.keyid} 2026-01-01 compromised\n")
    monkeypatch.setenv("NSABENCH_REVOKED_KEYS", str(revoked))
    assert unknown.keyid in (verify(out).broken or "")
    surveyed = archive.survey()
    assert not surveyed.sound and unknown.keyid in surveyed.broken[0]
    with pytest.raises(VerificationFailed, match="which is compromised"):
        archive.add(out)


def test_a_lasting_key_vouches_for_no_unknown_shard(tmp_path, signer, monkeypatch):
    made = [shard(tmp_path, Signer(Ed25519PrivateKey.generate(), True), i) for i in (1, 2, 3)]
    key = tmp_path / "signing.key"
    key.write_bytes(private_pem(signer.key))
    key.chmod(0o600)
    monkeypatch.setenv("NSABENCH_SIGNING_KEY_FILE", str(key))
    arguments = ("merge", *made, "--out", tmp_path / "whole")
    assert isinstance(invoke(*arguments).error, VerificationFailed)
    assert invoke(*arguments, "--require", "ephemeral").returncode == 0


def told(out):
    """Return the rows about shards in the report of a merged run."""
    part = (out / "selection_report.md").read_text().partition("## Shards")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in part.splitlines() if re.match(r"\| \d", line)]


def test_its_page_tells_the_shards_apart(tmp_path, signer):
    made = [
        shard(tmp_path / "other", signer, number, replace(FAST, canary_ms=ms))
        for number, ms in enumerate((0.2, 0.21, 0.22), 1)
    ]
    _, out = merged(made, signer)
    rows = told(out)
    parts = RunFolder(out).parts()
    assert [row[1] for row in rows] == [f"`shard-{n}`" for n in (1, 2, 3)]
    assert [int(row[2]) for row in rows] == [len(part.plan.cases) for part in parts]
    walls = [part.log.wall_s for part in parts]
    assert [float(row[3]) for row in rows] == pytest.approx(walls, abs=0.5)
    assert [float(row[4]) for row in rows] == pytest.approx([0.2, 0.21, 0.22], rel=0.01)
    assert [float(row[5]) for row in rows] == pytest.approx([0.952, 1, 1.048], abs=0.01)
    page = write_html(Facts.read(out), tmp_path / "page").read_text()
    assert 'id="shards"' in page and "at its end, ms" in page
    assert "nsabench merge SHARD" in page


def test_a_shard_without_a_canary_decides_nothing_and_says_why(tmp_path, shards, signer):
    lost = shard(tmp_path / "lost", signer, 2, replace(FAST, canary_lost="SIGSEGV in timing"))
    found, out = merged([shards[0], lost, shards[2]], signer)
    assert "shard 2/3" in find_outliers(found) and "SIGSEGV in timing" in find_outliers(found)
    own = {case.id for case in Plan.read(lost / "plan.json").cases}
    undecided = {r.case_id for r in read_records(out) if r.verdict is Verdict.INCONCLUSIVE}
    assert undecided == own
    rows = told(out)
    assert [row[-1] for row in rows] == ["–", "SIGSEGV in timing", "–"]
    assert rows[1][4:6] == ["–", "–"]
    assert "2 of 3 shards have one" in (out / "selection_report.md").read_text()


@pytest.mark.parametrize(
    ("how", "expected", "why"),
    [
        ({"canary_ms": 0.2 * 1.05}, Verdict.INCONCLUSIVE, "over 3% apart"),
        # Even if the other implementations are as fast as elsewhere.
        ({"canary_crashes": True}, Verdict.INCONCLUSIVE, "SIGSEGV"),
        ({"control_caught": False}, Verdict.INVALID, ""),
    ],
    ids=["slow", "one of the canary crashes", "control missed"],
)
def test_a_host_that_is_not_like_the_others_decides_nothing(
    tmp_path, shards, signer, how, expected, why
):
    odd = shard(tmp_path / "odd", signer, 2, replace(FAST, **how))
    found, out = merged([shards[0], odd, shards[2]], signer)
    own = {case.id for case in Plan.read(odd / "plan.json").cases}
    judged = [r for r in read_records(out) if r.verdict is not None]
    assert {(r.case_id in own, r.verdict) for r in judged} == {
        (True, expected),
        (False, Verdict.FASTER),
    }
    if expected is Verdict.INCONCLUSIVE:
        sentence = find_outliers(found)
        assert "shard 2/3" in sentence and why in sentence
        assert all(("shard 2/3" in r.why) == (r.case_id in own) for r in judged)
        assert "shard 2/3" in (out / "selection_report.md").read_text()
        return
    assert any("zero_output" in line for line in found.failures)
    [decision] = decide_run(read_records(out), Plan.read(out / "plan.json"))
    assert decision.min_length is None


def replan(out, change):
    plan = Plan.read(out / "plan.json")
    plan.model_copy(update=change(plan)).write(out / "plan.json")


def one_more(plan):
    """Return the cases of the plan, and one that no shard measured."""
    [first, *_] = plan.cases
    case = Case.model_validate(first.case.model_dump() | {"distribution": "spread"})
    more = first.model_copy(update={"id": case.id, "case": case, "shard": COUNT + 1})
    return {"cases": [*plan.cases, more]}


def without_the_last(out):
    shutil.rmtree(out / "shards" / "shard-3")
    kept = "shard-1", "shard-2"
    replan(out, lambda p: {"shards": kept, "cases": [c for c in p.cases if c.shard < COUNT]})


def signed_by_another(shard):
    """Sign the host's statement with the key of another signer."""
    other = Signer(Ed25519PrivateKey.generate(), ephemeral=False)
    own = {"keyid": other.keyid, "public_key": encode_key(public_der(other.key.public_key()))}
    resign(shard, lambda s: s["predicate"]["signer"].update(own), other)


def cut(log, lines):
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[lines]))


SECOND = "shards/shard-2"
# What the signer of a merged run changes in it, and the check that finds it.
CHANGED_BY_THE_MERGER = {
    "end of a log": (lambda out: cut(out / SECOND / "log.jsonl", slice(-1)), "log"),
    "environment of a shard": (
        lambda out: (out / SECOND / "environment.json").write_text("{}"),
        "log",
    ),
    "plan of a shard": (
        lambda out: shutil.copyfile(out / "plan.json", out / SECOND / "plan.json"),
        "log",
    ),
    "another shard in its place": (
        lambda out: shutil.copytree(out / "shards/shard-1", out / SECOND, dirs_exist_ok=True),
        "statement",
    ),
    "signer of a shard": (lambda out: signed_by_another(out / SECOND), "log"),
    "no log of a shard": (lambda out: (out / SECOND / "log.jsonl").unlink(), "statement"),
    "a shard twice": (
        lambda out: replan(out, lambda plan: {"shards": (*plan.shards, "shard-1")}),
        "log",
    ),
    "one shard less": (without_the_last, "log"),
    "a case of no shard": (lambda out: replan(out, one_more), "log"),
    "a case of another shard": (
        lambda out: replan(
            out, lambda plan: {"cases": [c.model_copy(update={"shard": 2}) for c in plan.cases]}
        ),
        "log",
    ),
    "margin and conditions": (
        lambda out: replan(out, lambda plan: {"margin": 1.0, "where": ("L=64",)}),
        "log",
    ),
    "environment": (lambda out: (out / "environment.json").open("a").write(" "), "log"),
}


@pytest.mark.parametrize("what", CHANGED_BY_THE_MERGER)
def test_whoever_merges_cannot_change_what_was_measured(tmp_path, signer, _merged, what):
    """A merged run that is changed and signed again still differs from what the hosts signed."""
    out = Path(shutil.copytree(_merged, tmp_path / "whole"))
    change, check = CHANGED_BY_THE_MERGER[what]
    change(out)
    seal(out, signer)
    assert (verify(out).broken or "it passes").startswith(f"{check}: ")


def test_a_merge_that_is_stopped_leaves_nothing(shards, signer, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("nsabench.fleet.merge.conclusion.conclude", stop)
    with pytest.raises(KeyboardInterrupt):
        merged(shards, signer)
    assert sorted(path.name for path in shards[0].parent.iterdir()) == ["s1", "s2", "s3"]


def test_a_merged_run_is_not_put_into_what_is_signed(shards, signer):
    before = sorted(shards[0].rglob("*"))
    with pytest.raises(UsageError, match=r"is inside .*, which is signed"):
        merge(shards, shards[0] / "whole", signer)
    assert sorted(shards[0].rglob("*")) == before


def test_the_command(shards):
    out = shards[0].parent / "whole"
    said = json.loads(invoke("merge", *shards, "--out", out, "--json").stdout)
    assert said["folder"] == str(out) and said["exit_code"] == 0
    again = invoke("merge", *shards, "--out", out)
    assert isinstance(again.error, UsageError) and "is not empty" in str(again.error)
