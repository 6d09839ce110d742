"""What foreign code can and cannot do in a worker, as root and as a user; tried for real."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nsabench.execution.protocol import Sandbox
from nsabench.execution.worker import sandbox
from nsabench.machine import landlock
from nsabench.packages import repository

CAP_SYS_PTRACE, CAP_MKNOD = 19, 27
needs_landlock = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")

# Each line is an attempt of a kernel; RUN, KEY, HOME, BEFORE and PARENT are filled in.
ATTEMPTS = {
    "writes into the run": "open(RUN + '/journal.jsonl', 'a')",
    "reads the plan": "open(RUN + '/plan.yaml').read()",
    "reads a run beside it": "open(RUN + '/../other/journal.jsonl').read()",
    "reads it through a link": "os.symlink(RUN, TMP + '/run'); open(TMP + '/run/plan.yaml').read()",
    "links it into its scratch": "os.link(RUN + '/plan.yaml', TMP + '/plan.yaml')",
    "renames it": "os.rename(RUN, RUN + '2')",
    "reads the key": "open(KEY).read()",
    "writes to the home": "open(HOME + '/.profile', 'a')",
    "writes beside its file": "open(HOME + '/mine.py', 'a')",
    "empties a file": "os.truncate(HOME + '/mine.py', 0)",
    "makes a device": "os.mknod(TMP + '/disk', 0o60600, os.makedev(254, 0))",
    "connects": "socket.socket().connect(('127.0.0.1', 9))",
    "opens a datagram socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "signals its parent": "os.kill(PARENT, 0)",
    "reads its parent's memory": "open(f'/proc/{PARENT}/mem', 'rb')",
    "reads its parent's environment": "open(f'/proc/{PARENT}/environ', 'rb').read(1)[0]",
    "limits its parent": "resource.prlimit(PARENT, resource.RLIMIT_CORE, (0, 0))",
    "slows its parent": "os.setpriority(os.PRIO_PROCESS, PARENT, 0)",
    "slows its user": "os.setpriority(os.PRIO_USER, 0, 0)",
    "schedules its parent": "os.sched_setscheduler(PARENT, os.SCHED_OTHER, os.sched_param(0))",
    "leaves shared memory": "LIBC.shmctl(done(LIBC.shmget(0, 1, 0o1600)), 0, None)",
    "sets an attribute": "os.setxattr(HOME + '/mine.py', 'user.x', b'1')",
    "leaves a core": "resource.setrlimit(resource.RLIMIT_CORE, (1, 1))",
}
ALLOWED = {
    "writes to its scratch": "open(TMP + '/x', 'w').write('x')",
    "removes it again": "os.remove(TMP + '/x')",
    "reads its own file": "open(HOME + '/mine.py').read()",
    "lists its folder": "os.listdir(HOME)",
    "limits itself": "resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0))",
    "slows itself": "os.setpriority(os.PRIO_PROCESS, 0, 1)",
    "binds itself": "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "binds a thread": "os.sched_setaffinity(1, os.sched_getaffinity(0))",
    "runs a program": "subprocess.run(['true'], check=True)",
    "talks to itself": "socket.socketpair()",
    "writes to no device": "open('/dev/null', 'w').write('x')",
    "sets a mode, it thinks": "os.chmod(HOME + '/mine.py', 0)",
    "copies a file": "shutil.copy(HOME + '/mine.py', TMP + '/copied.py')",
    "names a thread": "open('/proc/self/comm', 'w').write('x')",
}
SCRIPT = """
import ctypes, json, os, resource, shutil, socket, subprocess, sys, tempfile
from nsabench.execution.protocol import Sandbox
from nsabench.execution.worker import sandbox
given = json.loads(sys.argv[1])
globals().update(given["names"])
if given["uid"]:
    os.setgid(given["uid"]); os.setuid(given["uid"])
    ctypes.CDLL(None).prctl(4, 1)  # dumpable again, as what was started by that user is
sandbox.enter(Sandbox.model_validate(given["sandbox"]))
TMP = tempfile.gettempdir()
LIBC = ctypes.CDLL(None)
def done(result):
    if result < 0:
        raise OSError
    return result
found = {}
for name, line in given["attempts"].items():
    try:
        exec(line)
        found[name] = "done"
    except (OSError, IndexError, ValueError) as error:
        found[name] = type(error).__name__
print(json.dumps({"held": sandbox.held(), "tmp": TMP, "found": found}))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A home with a run in it, another run beside that, a key, and a scratch."""
    for name in ("results/run", "results/other", "scratch"):
        (tmp_path / name).mkdir(parents=True)
    for name in (
        "results/run/plan.yaml",
        "results/run/journal.jsonl",
        "results/other/journal.jsonl",
    ):
        (tmp_path / name).write_text("x")
    for name in ("signing.key", "mine.py"):
        (tmp_path / name).write_text("x")
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o777)  # a user other than root gets there, and may write
    for path in tmp_path.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    return tmp_path


def tried(place: Path, attempts: dict[str, str], uid: int = 0) -> dict[str, object]:
    run = place / "results" / "run"
    given = {
        "uid": uid,
        "attempts": attempts,
        "names": {
            "RUN": str(run),
            "KEY": str(place / "signing.key"),
            "HOME": str(place),
            "PARENT": os.getpid(),
        },
        "sandbox": {
            "scratch": str(place / "scratch"),
            "hidden": [str(run), str(run.parent / "other"), str(place / "signing.key")],
        },
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@needs_landlock
@pytest.mark.parametrize("uid", [0, 1000])
def test_a_worker_writes_to_its_scratch_and_sees_no_run_and_no_key(place: Path, uid: int) -> None:
    if uid and os.getuid() != 0:
        pytest.skip("only root can become another user")
    answer = tried(place, {**ATTEMPTS, **ALLOWED}, uid)
    found = answer["found"]
    assert isinstance(found, dict)
    assert {name for name in ATTEMPTS if found[name] == "done"} == set()
    assert {name: found[name] for name in ALLOWED if found[name] != "done"} == {}
    assert stat.S_IMODE((place / "mine.py").stat().st_mode) == 0o666
    assert str(answer["held"]).startswith("files")
    assert str(answer["tmp"]).startswith(str(place / "scratch"))


def test_outside_each_attempt_succeeds(place: Path) -> None:
    """What a sandbox refuses could be done without: no attempt fails for another reason."""
    powers = int(re.search(r"CapEff:\s+(\w+)", Path("/proc/self/status").read_text())[1], 16)  # type: ignore[index]
    if not all(powers >> power & 1 for power in (CAP_SYS_PTRACE, CAP_MKNOD)):
        pytest.skip("as root, since one makes a device and one reads another's memory")
    script = SCRIPT.replace("sandbox.enter(", "(lambda given: None)(")
    names = {
        "RUN": str(place / "results" / "run"),
        "KEY": str(place / "signing.key"),
        "HOME": str(place),
        "PARENT": os.getpid(),
    }
    # Nothing listens, and the run is renamed: these would fail, or disturb the others.
    left_out = ("connects", "renames it")
    attempts = {name: line for name, line in ATTEMPTS.items() if name not in left_out}
    given = {"uid": 0, "attempts": attempts, "names": names}
    given |= {"sandbox": {"scratch": str(place / "scratch"), "hidden": []}}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(place / "scratch")},
        check=True,
    )
    found = json.loads(done.stdout)["found"]
    assert {name: how for name, how in found.items() if how != "done"} == {}


def test_everything_but_what_is_hidden_is_granted(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    granted = set(sandbox.around([tmp_path / "a" / "b" / "c"], tmp_path))
    assert granted == {tmp_path / "a" / "d", tmp_path / "a" / "b" / "file", tmp_path / "e"}
    assert set(sandbox.around([], tmp_path)) == {tmp_path}
    assert set(sandbox.around([tmp_path], tmp_path)) == set()


def test_where_there_is_none_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    monkeypatch.setattr(sandbox, "_sockets", lambda: iter(["sockets (seccomp)"]))
    monkeypatch.setattr(sandbox, "_held", "")
    monkeypatch.setattr(sandbox.capabilities, "keep", lambda *given: None)
    monkeypatch.setattr(sandbox.resource, "setrlimit", lambda *given: None)
    for variable in (*sandbox._CACHES, repository.FOLDER):
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/the/user")
    monkeypatch.setattr("tempfile.tempdir", None)
    assert sandbox.held() == "none: it was not asked for"
    sandbox.enter(Sandbox(scratch=str(tmp_path), hidden=[]))
    assert sandbox.held() == "none: this kernel has no Landlock, sockets (seccomp)"
    # What was brought for this user is found by a worker, whose caches are its own.
    assert str(repository.folder()) == "/of/the/user/nsabench/packages"
