"""What a worker leaves behind is found, however it hides."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import termios
import time
from array import array

import psutil

from nsabench.supervisor import watchdog

UNREADABLE = """
import ctypes, os, sys, time
import psutil
from nsabench.supervisor import process

PR_SET_DUMPABLE = 4
if os.getuid() == 0:  # root reads everybody's environment; a run seldom is root
    os.setuid(65534)
process._adopt_orphans()
born = time.time()
said, says = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
        os.write(says, b"%d" % os.getpid())
        time.sleep(60)
    os._exit(0)
os.wait()
orphan = psutil.Process(int(os.read(said, 20)))
try:
    orphan.environ()
    print("readable")
except psutil.AccessDenied:
    process.reap_orphans(set(), born)
    print("left" if orphan.is_running() else "killed")
orphan.kill() if orphan.is_running() else None
"""


def test_an_orphan_whose_environment_may_not_be_read_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNREADABLE],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "killed\n"


def watching(mark: str, lines: str) -> subprocess.Popen[bytes]:
    """A watchdog that has read these lines and waits for the end of its input."""
    dog = subprocess.Popen(
        [sys.executable, "-S", str(watchdog.__file__), mark], stdin=subprocess.PIPE, bufsize=0
    )
    assert dog.stdin is not None
    dog.stdin.write(lines.encode())
    unread = array("i", [1])
    while unread[0]:
        time.sleep(0.01)
        fcntl.ioctl(dog.stdin, termios.FIONREAD, unread)
    return dog


def test_the_watchdog_looks_again_for_what_shows_no_mark_at_first() -> None:
    """As a process that is starting a program, for a moment."""
    hidden = (
        "import os, sys, time; sys.stdin.read(); time.sleep(0.3); "
        'os.execve("/bin/sleep", ["sleep", "60"], {"NSABENCH_TEST_MARK": "1"})'
    )
    gone = subprocess.Popen(["true"])
    gone.wait()
    with psutil.Popen(
        [sys.executable, "-S", "-c", hidden], env={}, stdin=subprocess.PIPE, start_new_session=True
    ) as orphan:
        dog = watching("NSABENCH_TEST_MARK=1", f"+{gone.pid}\n")
        assert orphan.stdin is not None
        orphan.stdin.close()
        dog.communicate(timeout=60)
        killed = orphan.poll() is not None
        if not killed:
            orphan.kill()
    assert killed
