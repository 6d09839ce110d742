"""A log names the key of its signer, which alone can add to it. Only a torn last line is
forgiven."""

import base64
import json
from contextlib import closing

import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.errors import NsabenchError, UsageError, VerificationFailed
from nsabench.model.description import Described
from nsabench.model.log import Begun, Ended
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose, Role
from nsabench.running.log import LogFile, digest, examine, read, sign_line
from nsabench.running.policy import next_jobs
from nsabench.signing import Signer
from nsabench.signing.signer import RUN_KEY, make_run_key, read_run_key
from nsabench.verdicts.results import Results, RunLog, assemble
from nsabench.verdicts.tables import write_tables
from tests.runs import Made, log_of, make_plan, make_run, record, session_of

PLAN = make_plan(Made(lengths=(64,), shapes=((256, 4, 64),)))
SESSION = session_of(PLAN, Described(software={}, device={"type": "cuda"}))


def signer():
    return Signer(Ed25519PrivateKey.generate(), ephemeral=False)


ME = signer()


def begun(attempt=1):
    job = next_jobs(PLAN, log_of(PLAN))[0]
    return Begun(job=job.model_copy(update={"attempt": attempt}))


def measure(path, *attempts, by=ME):
    """Write a session with these attempts to the log."""
    with closing(LogFile(path)) as log:
        log.sign_as(by)
        log.append(SESSION)
        for attempt in attempts:
            log.append(begun(attempt), Ended())


def attempts(path):
    return [attempt.job.attempt for attempt in read(path).attempts]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "log.jsonl"
    measure(path, 1, 2)
    measure(path, 3)
    return path


def test_a_log_says_who_measured_it(path):
    log, origin = examine(path)
    assert [attempt.job.attempt for attempt in log.attempts] == [1, 2, 3]
    assert (origin.keyid, origin.ephemeral) == (ME.keyid, False)
    assert (origin.sessions, origin.lines) == (2, 8)
    assert origin.end == digest(path.read_bytes().split(b"\n")[-2])


def test_no_secret_is_in_it(path):
    assert isinstance(ME.key, Ed25519PrivateKey)
    secret = ME.key.private_bytes_raw()
    text = path.read_bytes()
    assert secret not in text and base64.b64encode(secret)[:40] not in text


def forged(*entries, by, after=-1):
    """Return a change that appends entries signed with any key, as a hostile process could."""

    def change(lines):
        previous = digest(lines[after])
        for entry in entries:
            lines = [*lines, sign_line(entry, previous, by)]
            previous = digest(lines[-1])
        return lines

    return change


def in_my_name(lines):
    """Append a session that a stranger signed in my name."""
    line = json.loads(sign_line(SESSION, digest(lines[-1]), signer()))
    line["signer"] = json.loads(lines[0])["signer"]
    return [*lines, json.dumps(line, separators=(",", ":")).encode()]


def altered(old, new):
    return lambda lines: [line.replace(old, new) for line in lines]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (altered(b'"attempt":2', b'"attempt":9'), "line 4 is not what was signed"),
        (altered(b'"run_id":"2026', b'"run_id":"2025'), "line 1 is not what was signed"),
        (altered(b'"ephemeral":false', b'"ephemeral":true'), "line 1 is not what was signed"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 does not follow"),
        (lambda lines: [*lines[:1], lines[2], lines[1], *lines[3:]], "line 2 does not follow"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3 does not follow"),
        (lambda lines: lines[5:], "line 1 does not follow"),
        (lambda lines: lines[1:], "line 1 does not say who measured"),
        (forged(Ended(), by=signer()), "line 9 is not what was signed"),
        (forged(Ended(), by=ME, after=-2), "line 9 does not follow"),
        (forged(SESSION, by=signer()), "line 9 is signed with another key"),
        (in_my_name, "line 9 is not"),
        (forged(SESSION, Ended(), by=ME), "no job is open"),
        (lambda lines: [*lines, b"{}"], ":9: not a line"),
        (altered(b'"attempt":2', b'"attempt":2.5'), ":4: not a line"),
        (altered(b'"attempt":2', b'"attempt":\r2'), "line 4 is not what was signed"),
    ],
)
def test_what_was_done_to_it(path, change, sentence):
    lines = path.read_bytes().split(b"\n")[:-1]
    path.write_bytes(b"".join(line + b"\n" for line in change(lines)))
    for reader in (examine, LogFile):
        with pytest.raises((VerificationFailed, UsageError), match=sentence):
            reader(path)


def test_every_byte_of_a_line_counts(path):
    whole = path.read_bytes()
    begin = whole.index(b"\n") + 1
    for offset in range(begin, whole.index(b"\n", begin), 7):
        changed = bytearray(whole)
        changed[offset] ^= 1
        path.write_bytes(changed)
        with pytest.raises(NsabenchError, match=r"log\.jsonl:\d|line \d"):
            examine(path)


def test_every_torn_end_is_forgiven(path):
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for cut in range(last + 1, len(whole)):
        path.write_bytes(whole[:cut])
        assert attempts(path) == [1, 2, 3] and not read(path).attempts[-1].has_answer
    measure(path, 4)
    log, origin = examine(path)
    assert [attempt.has_answer for attempt in log.attempts] == [True, True, False, True]
    assert origin.sessions == 3


def test_only_one_process_writes_a_log(path):
    with closing(LogFile(path)), pytest.raises(UsageError, match="another nsabench"):
        LogFile(path)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"escaped_ms": [0.0]},
        {"sm_clock_mhz": [1980] * 3},
        {"round": []},
        {"time_ms": [0.2, 0.0]},
        {"time_ms": [0.2, -0.1]},
        {"time_ms": [0.2, float("inf")]},
        {"time_ms": [0.2, float("nan")]},
    ],
)
def test_samples_that_no_timer_takes_are_no_line(tmp_path, nonsense):
    samples = {"round": [0, 1], "time_ms": [0.2, 0.3], "escaped_ms": [0.0, 0.0]}
    path = tmp_path / "log.jsonl"

    def write(samples):
        observation = {"implementation": "mine", "status": "ok", "samples": samples}
        lines = [
            {"entry": begun().model_dump(mode="json")},
            {"entry": {"kind": "observed", "observation": observation}},
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    write(samples)
    [attempt] = read(path).attempts
    timed = record("mine", Role.CANDIDATE, samples=attempt.observations[0].samples)
    write_tables(Results([timed], []), "run", tmp_path)
    written = pq.read_table(tmp_path / "samples.parquet")
    assert written["time_ms"].to_pylist() == [0.2, 0.3]
    assert written["at_s"].to_pylist() == written["sm_clock_mhz"].to_pylist() == [None, None]
    write({**samples, **nonsense})
    with pytest.raises(UsageError, match="not a line of a run's log"):
        read(path)


def test_a_resumed_run_counts_the_best_ceilings_and_the_worst_timer(tmp_path):
    first = Ceilings(copy_gb_s=4000.0, tflop_s={"float16": 700.0}, known_duration_error=0.001)
    second = Ceilings(copy_gb_s=3000.0, tflop_s={"float16": 750.0}, known_duration_error=-0.2)
    folder = make_run(tmp_path / "run")
    log = read(folder / "log.jsonl")
    [session] = log.sessions
    log.sessions = [session.model_copy(update={"ceilings": c}) for c in (first, second)]
    found = log.ceilings
    assert (found.copy_gb_s, found.tflop_s) == (4000.0, {"float16": 750.0})
    assert found.known_duration_error == -0.2 and found.l2_gb_s is None
    plan = Plan.read(folder / "plan.json")
    results = assemble(plan.run_id, [RunLog(plan, log)])
    (finding,) = (f for f in results.findings if f.check == "timer")
    assert "-20.0%" in finding.sentence


def test_a_log_of_another_order_is_refused(tmp_path):
    """An attempt that does not follow from those before it was not made by a run."""
    folder = make_run(tmp_path / "run")
    plan, log = Plan.read(folder / "plan.json"), read(folder / "log.jsonl")
    again = log.attempts_of(Purpose.MAIN, plan.cases[0].id)[0]
    log.extend(Begun(job=again.job), Ended())
    with pytest.raises(UsageError, match="log"):
        assemble(plan.run_id, [RunLog(plan, log)])


def test_the_key_of_a_run_is_kept_in_its_folder(tmp_path):
    assert read_run_key(tmp_path) is None
    made = make_run_key(tmp_path)
    kept = read_run_key(tmp_path)
    assert made.ephemeral and kept is not None and kept.keyid == made.keyid
    assert (tmp_path / RUN_KEY).stat().st_mode & 0o777 == 0o600
