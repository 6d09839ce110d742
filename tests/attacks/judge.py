"""Attacks on nsabench's own files, messages and processes."""

import atexit
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

import nsabench
from nsabench import Unsupported
from tests.attacks.kit import attack, instances, once

DENIED = "the sandbox denies it"


@attack("crashed", DENIED)
def rewrites_the_bench(q, k, v, sm_scale):
    with Path(nsabench.__file__).with_name("conclusion.py").open("a") as file:
        file.write("# mine\n")


@attack("crashed", DENIED)
def reads_the_plan(q, k, v, sm_scale):
    Path(os.environ["NSABENCH_TEST_RUN"], "plan.json").read_text()


@attack("crashed", DENIED)
def kills_whom_it_can(q, k, v, sm_scale):
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in (1, os.getpid()):
            os.kill(int(folder.name), signal.SIGCONT)  # a signal that ends no process


def template():
    """Return the process from which all workers are forked, also those of isolated baselines."""
    ours = [b"--parent", str(os.getppid()).encode(), b"--socket"]
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            line = folder.joinpath("cmdline").read_bytes()
            # Tests start it with `-c` and a script that names the module.
            if b"nsabench.worker" in line and line.split(b"\0")[3:6] == ours:
                return int(folder.name)
    raise LookupError("there is no template")


@attack("ok")
def binds_who_comes_after(q, k, v, sm_scale):
    """Bind later workers to one core. The call succeeds, because OpenMP needs it, and has no
    effect."""
    cores = os.sched_getaffinity(template())
    os.sched_setaffinity(template(), {min(cores)})
    assert os.sched_getaffinity(template()) == cores


def refused(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


libc = ctypes.CDLL(None, use_errno=True)


@attack("crashed", DENIED)
def shows_others_a_file_of_its_own(q, k, v, sm_scale):
    """A namespace of its own would give it the power to mount file systems."""
    libc.unshare(0x10000000)  # CLONE_NEWUSER
    libc.unshare(0x00020000)  # CLONE_NEWNS
    refused(libc.mount(b"none", os.environ["TMPDIR"].encode(), b"tmpfs", 0, None))


@attack("crashed", "closed the descriptor")
def closes_every_descriptor(q, k, v, sm_scale):
    os.closerange(3, 256)
    time.sleep(600)


@attack("timeout", "no answer within")
def swallows_the_requests(q, k, v, sm_scale):
    sys.stdin.buffer.read(1)


@attack("crashed", "wrote on the descriptor of the worker's answers")
def writes_on_every_descriptor(q, k, v, sm_scale):
    for descriptor in range(3, 64):
        if os.path.realpath(f"/proc/self/fd/{descriptor}").startswith("/proc"):
            try:
                os.write(descriptor, b"all is well\n")
            except OSError:
                continue


@attack("crashed", "answered with a")
def answers_before_it_is_done(q, k, v, sm_scale):
    from nsabench.worker.protocol import Compiled

    [channel] = instances("Channel")
    channel.send(Compiled())
    time.sleep(600)


@once
def patch_outcome(values):
    [channel] = instances("Channel")
    stream = channel._stream

    class Forger:
        def write(self, line):
            nonce, _, content = line.partition(b" ")
            message = json.loads(content)
            for observation in message.get("observations", ()):
                for name, value in values.items():
                    if name == "time_ms":
                        samples = observation["samples"]
                        samples["time_ms"] = [value] * len(samples["time_ms"])
                    elif observation["implementation"] != "sdpa_gqa":
                        observation[name] = value
            stream.write(nonce + b" " + json.dumps(message).encode() + b"\n")

        def flush(self):
            stream.flush()

    channel._stream = Forger()  # not `send`, which was looked up before the call


@attack("crashed", "wrote on the descriptor of the worker's answers")
def takes_next_to_no_time(q, k, v, sm_scale):
    """Report the least number above 0: a division by it overflows to infinity."""
    patch_outcome({"time_ms": 5e-324})


@attack("crashed", "more than the log has room for")
def says_more_than_a_log_reads(q, k, v, sm_scale):
    """If the log held so long a line, it could not be read."""
    patch_outcome({"notes": ["x" * (17 << 20)]})


@attack("unsupported", "xxx")
def declines_at_length(q, k, v, sm_scale):
    raise Unsupported("x" * (17 << 20))


@attack("ok")
def speaks_at_the_end(q, k, v, sm_scale):
    atexit.register(os.kill, os.getppid(), signal.SIGKILL)
    atexit.register(os._exit, 0)


class Hook:
    def find_spec(self, name, path=None, target=None):
        raise ImportError(f"{name} is not for you")


@attack("ok")
def hooks_imports(q, k, v, sm_scale):
    """Hook later imports. A worker imports nothing more, so this has no effect."""
    if not any(isinstance(one, Hook) for one in sys.meta_path):
        sys.meta_path.insert(0, Hook())


@attack("ok")
def leaves_variables(q, k, v, sm_scale):
    for name in ("LD_PRELOAD", "PYTHONPATH", "TRITON_CACHE_DIR", "NSABENCH_WORKER_OF"):
        os.environ[name] = "/tmp/mine"


@attack("out_of_memory", "SIGKILL")
def kills_itself(q, k, v, sm_scale):
    os.kill(os.getpid(), signal.SIGKILL)


@attack("crashed", "")
def recurses_for_ever(q, k, v, sm_scale):
    return recurses_for_ever(q, k, v, sm_scale)
