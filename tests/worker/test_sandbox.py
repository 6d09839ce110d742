"""Attempts of foreign code in a worker, and how the caches that it wrote reach another worker."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from nsabench.machine import landlock
from nsabench.worker import sandbox

CAP_SYS_PTRACE, CAP_MKNOD = 19, 27
needs_landlock = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")

# Each line is an attempt of a kernel; RUN, KEY, HOME, BEFORE and PARENT are filled in.
ATTEMPTS = {
    "writes into the run": "open(RUN + '/log.jsonl', 'a')",
    "reads the plan": "open(RUN + '/plan.json').read()",
    "reads a run beside it": "open(RUN + '/../other/log.jsonl').read()",
    "reads it through a link": "os.symlink(RUN, TMP + '/run'); open(TMP + '/run/plan.json').read()",
    "links it into its scratch": "os.link(RUN + '/plan.json', TMP + '/plan.json')",
    "renames it": "os.rename(RUN, RUN + '2')",
    "reads the key": "open(KEY).read()",
    "writes to the home": "open(HOME + '/.profile', 'a')",
    "writes beside its file": "open(HOME + '/mine.py', 'a')",
    "empties a file": "os.truncate(HOME + '/mine.py', 0)",
    "makes a device": "os.mknod(TMP + '/disk', 0o60600, os.makedev(254, 0))",
    "connects": "socket.socket().connect(('127.0.0.1', 9))",
    "asks a daemon": "os.chdir(HOME); socket.socket(socket.AF_UNIX).connect('daemon')",
    "tells a daemon": "os.chdir(HOME); "
    "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', 'hears')",
    "tells it raw": "os.chdir(HOME); socket.socket(socket.AF_UNIX, "
    "socket.SOCK_RAW | socket.SOCK_NONBLOCK).sendto(b'x', 'hears')",
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
    "leaves a queue": "done(LIBC.mq_open(b'/x', os.O_CREAT | os.O_RDWR, 0o600, None)); "
    "LIBC.mq_unlink(b'/x')",
    "leaves a key": "done(LIBC.syscall(ADD_KEY, b'user', b'nsabench-test', b'x', 1, -4))",
    "takes a descriptor of its parent": "done(LIBC.syscall(438, os.pidfd_open(PARENT), 1, 0))",
    "holds what others open": "fcntl.fcntl(open(HOME + '/mine.py'), fcntl.F_SETLEASE, 0)",
    "leaves a core": "resource.setrlimit(resource.RLIMIT_CORE, (1, 1))",
}
ALLOWED = {
    "writes to its scratch": "open(TMP + '/x', 'w').write('x')",
    "removes it again": "os.remove(TMP + '/x')",
    "reads its own file": "open(HOME + '/mine.py').read()",
    "lists its folder": "os.listdir(HOME)",
    "limits itself": "resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0))",
    "slows itself": "os.setpriority(os.PRIO_PROCESS, 0, 19)",
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
import ctypes, fcntl, json, os, platform, resource, shutil, signal, socket, struct, subprocess, sys
import tempfile, termios
from nsabench.worker.protocol import Sandbox
from nsabench.worker import sandbox
given = json.loads(sys.argv[1])
globals().update(given["names"])
if given["uid"]:
    os.setgid(given["uid"]); os.setuid(given["uid"])
    ctypes.CDLL(None).prctl(4, 1)  # dumpable again, as what was started by that user is
if given["abi"]:
    from nsabench.machine import landlock
    os.setsid()  # as a worker has
    landlock.abi = lambda: given["abi"]
sandbox.enter(Sandbox.model_validate(given["sandbox"]))
TMP = tempfile.gettempdir()
LIBC, TO_PARENT = ctypes.CDLL(None), struct.pack("i", PARENT)
ADD_KEY = {"x86_64": 248, "aarch64": 217}[platform.machine()]
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
print(json.dumps({"held": sandbox.restrictions(), "tmp": TMP, "found": found}))
"""


@pytest.fixture
def place(tmp_path):
    """Make a home folder with two runs, a key, a scratch folder and a daemon."""
    for name in ("results/run", "results/other", "scratch"):
        (tmp_path / name).mkdir(parents=True)
    runs = [
        f"results/{run}/{name}" for run in ("run", "other") for name in ("plan.json", "log.jsonl")
    ]
    for name in (*runs, "signing.key", "mine.py"):
        (tmp_path / name).write_text("x")
    # The sockets stand for daemons. A client could do harm without an answer.
    daemon = socket.socket(socket.AF_UNIX)
    hears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    before = Path.cwd()
    os.chdir(tmp_path)  # the path of a socket must be short
    daemon.bind("daemon")
    hears.bind("hears")
    os.chdir(before)
    daemon.listen()
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o777)  # other users than root can enter and write
    for path in tmp_path.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    with closing(daemon), closing(hears):
        yield tmp_path


def tried(place, attempts, uid=0, abi=0, script=SCRIPT):
    """Run the attempts in a sandbox and return its answer. `abi` is the Landlock version of an
    older kernel to imitate, or 0 for the version of this kernel."""
    run, key = place / "results" / "run", place / "signing.key"
    hidden = [str(run), str(run.parent / "other"), str(key)]
    given = {
        "uid": uid,
        "abi": abi,
        "attempts": attempts,
        "names": {"RUN": str(run), "KEY": str(key), "HOME": str(place), "PARENT": os.getpid()},
        "sandbox": {"scratch": str(place / "scratch"), "hidden": hidden},
    }
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(place / "scratch")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_landlock
@pytest.mark.parametrize("uid", [0, 1000])
def test_a_worker_writes_to_its_scratch_and_sees_no_run_and_no_key(place, uid):
    if uid and os.getuid() != 0:
        pytest.skip("only root can become another user")
    answer = tried(place, {**ATTEMPTS, **ALLOWED}, uid)
    found = answer["found"]
    assert {name for name in ATTEMPTS if found[name] == "done"} == set()
    assert {name: found[name] for name in ALLOWED if found[name] != "done"} == {}
    assert stat.S_IMODE((place / "mine.py").stat().st_mode) == 0o666
    assert str(answer["held"]).startswith("files")
    assert str(answer["tmp"]).startswith(str(place / "scratch"))


# Signals to other processes. In this test they go to a process that waits and cannot be hurt.
SIGNALS = {
    "asks for its parent": "os.kill(PARENT, 0)",
    "asks for all": "os.kill(-1, 0)",
    "asks for another group": "os.killpg(os.getpgid(PARENT), 0)",
    "signals a thread": "done(LIBC.syscall(234, PARENT, PARENT, 0))",
    "signals by descriptor": "signal.pidfd_send_signal(os.pidfd_open(PARENT), 0)",
    "has others signalled": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, PARENT)",
    "has them signalled otherwise": "fcntl.fcntl(os.pipe()[0], 15, struct.pack('ii', 1, PARENT))",
    "has them signalled by ioctl": "fcntl.ioctl(socket.socketpair()[0], 0x8901, TO_PARENT)",
}
OWN_SIGNALS = {
    "signals itself": "os.kill(os.getpid(), 0)",
    "signals its group": "os.killpg(0, 0)",
    "signals its group by number": "os.killpg(os.getpgid(0), 0)",
    "signals its thread": "done(LIBC.syscall(234, os.getpid(), os.getpid(), 0))",
    "raises": "signal.raise_signal(signal.SIGCHLD)",
    "sets a flag of a file": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETFL, os.O_NONBLOCK)",
    "asks what can be read": "fcntl.ioctl(os.pipe()[0], termios.FIONREAD, b'0000')",
}


@needs_landlock
def test_the_daemon_of_a_shared_gpu_can_be_reached(place, monkeypatch):
    """CUDA would not start without this daemon. The answer says that local sockets are allowed."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(place))
    (place / "control").write_text("")
    answer = tried(place, {"asks a daemon": ATTEMPTS["asks a daemon"]})
    assert "sockets but local ones (seccomp)" in answer["held"]
    assert answer["found"] == {"asks a daemon": "done"}


@needs_landlock
def test_below_landlocks_scopes_signals_are_kept_by_seccomp(place):
    """Most GPU hosts have a Linux kernel without these scopes."""
    answer = tried(place, {**SIGNALS, **OWN_SIGNALS, **ALLOWED}, abi=5)
    found = answer["found"]
    assert {name for name in SIGNALS if found[name] == "done"} == set()
    kept = {**OWN_SIGNALS, **ALLOWED}
    assert {name: found[name] for name in kept if found[name] != "done"} == {}
    assert answer["held"] == "files, TCP (Landlock 5), sockets, signals (seccomp)"


@needs_landlock
@pytest.mark.parametrize(
    ("abi", "held"),
    [
        *((abi, f"files (Landlock {abi}), sockets, signals (seccomp)") for abi in (1, 2, 3)),
        (4, "files, TCP (Landlock 4), sockets, signals (seccomp)"),
        (6, "files, TCP, signals (Landlock 6), sockets (seccomp)"),
    ],
)
def test_each_version_holds_what_it_can(place, abi, held):
    if abi > landlock.abi():
        pytest.skip("this kernel has an older Landlock")
    assert tried(place, {}, abi=abi)["held"] == held


def test_outside_each_attempt_succeeds(place):
    """Without a sandbox, every attempt succeeds, so the sandbox is the only reason for a
    refusal."""
    powers = int(re.search(r"CapEff:\s+(\w+)", Path("/proc/self/status").read_text())[1], 16)
    if not all(powers >> power & 1 for power in (CAP_SYS_PTRACE, CAP_MKNOD)):
        pytest.skip("needs root: attempts make a device and read another process's memory")
    script = SCRIPT.replace("sandbox.enter(", "(lambda given: None)(")
    # `connects` would fail, as nothing listens. `renames it` would disturb the other attempts.
    left_out = ("connects", "renames it")
    attempts = {n: line for n, line in {**ATTEMPTS, **SIGNALS}.items() if n not in left_out}
    found = tried(place, attempts, script=script)["found"]
    assert {name: how for name, how in found.items() if how != "done"} == {}


def test_everything_but_what_is_hidden_is_granted(tmp_path):
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    granted = set(sandbox.paths_except([tmp_path / "a" / "b" / "c"], tmp_path))
    assert granted == {tmp_path / "a" / "d", tmp_path / "a" / "b" / "file", tmp_path / "e"}
    assert set(sandbox.paths_except([], tmp_path)) == {tmp_path}
    assert set(sandbox.paths_except([tmp_path], tmp_path)) == set()


@pytest.fixture
def others(tmp_path):
    (tmp_path / "others/triton/a").mkdir(parents=True)
    (tmp_path / "others/triton/a/kernel.cubin").write_bytes(b"x" * 100)
    return tmp_path / "others"


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own/triton").mkdir(parents=True)
    return tmp_path / "own"


def test_files_come_as_they_are_and_links_as_links(others, own):
    secret = others.parent / "secret"
    secret.write_text("of the key")
    kernel = others / "triton/a/kernel.cubin"
    kernel.chmod(0o500)
    os.utime(kernel, ns=(1, 10**18 + 1))  # ninja compares to the nanosecond
    (others / "triton/link").symlink_to(secret)
    sandbox.copy_caches(others, own)
    brought = (own / "triton/a/kernel.cubin").stat()
    assert (brought.st_mtime_ns, brought.st_mode & 0o777) == (10**18 + 1, 0o500)
    assert (own / "triton/link").is_symlink()
    assert sorted(path.name for path in (own / "triton/a").iterdir()) == ["kernel.cubin"]


def test_what_was_chosen_beside_others_is_not_brought(others, own):
    """Triton and Inductor keep the fastest variant, which other processes on the GPU influence."""
    for name in ("parallel_nsa_fwd_kernel.autotune.json", "k.best_config", "parallel.json"):
        (others / "triton/a" / name).touch()
    sandbox.copy_caches(others, own)
    kept = {path.name for path in (own / "triton/a").iterdir()}
    assert kept == {"kernel.cubin", "parallel.json"}


def _a_pipe(cache):
    os.mkfifo(cache / "pipe")  # opening it would never return


def _a_link_in_its_place(cache):
    cache.rename(cache.with_name("away"))
    cache.symlink_to("/dev")


@pytest.mark.parametrize("hostile", [_a_pipe, _a_link_in_its_place])
def test_a_cache_that_cannot_be_brought_whole_is_left_out(others, own, hostile):
    hostile(others / "triton")
    sandbox.copy_caches(others, own)
    assert [path.name for path in own.iterdir()] == ["triton"] and not any(
        (own / "triton").iterdir()
    )
