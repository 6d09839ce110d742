"""Attacks on code that shares the process, the machine or the memory."""

import ctypes
import itertools
import os
import socket
import subprocess
import time
from pathlib import Path

import torch

from tests.attacks.kit import attack, honest

buffers = []


CALLS, SOME = itertools.count(), 20


@attack("wrong", "it changed its input k")
def writes_its_inputs(q, k, v, sm_scale):
    out = honest(q, k, v, sm_scale)
    k.zero_()
    return out


@attack("wrong", "it changed its input v")
def writes_past_the_version(q, k, v, sm_scale):
    out = honest(q, k, v, sm_scale)
    ctypes.memset(v.data_ptr(), 0, 8)
    return out


@attack("wrong", "shares memory with its input q")
def returns_what_it_was_given(q, k, v, sm_scale):
    return q


@attack("wrong", "a later call overwrote what an earlier one had returned")
def returns_one_buffer(q, k, v, sm_scale):
    if not buffers:
        buffers.append(torch.empty_like(q))
    return buffers[0].copy_(honest(q, k, v, sm_scale))


@attack("wrong", "changed settings of the process: num_threads")
def takes_threads(q, k, v, sm_scale):
    torch.set_num_threads(torch.get_num_threads() + 1)


@attack("wrong", "is a view with the negative bit set")
def negates_later(q, k, v, sm_scale):
    return torch._neg_view(-honest(q, k, v, sm_scale))


@attack("ok", "behind, which were killed")
def leaves_a_child(q, k, v, sm_scale):
    """Only the first calls leave a child: more would be too many, as in `breeds`."""
    if next(CALLS) < SOME:
        subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)


@attack("ok")
def leaves_an_orphan(q, k, v, sm_scale):
    """Only the first calls leave an orphan, as in `leaves_a_child`."""
    if next(CALLS) < SOME and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "600.5"], {})
        os._exit(0)


@attack("crashed", "Error")
def calls_home(q, k, v, sm_scale):
    socket.create_connection(("127.0.0.1", 9), timeout=1)


@attack("crashed", "")
def fills_a_file(q, k, v, sm_scale):
    with Path(os.environ["TMPDIR"], "full").open("wb") as file:
        file.truncate(32 << 30)


@attack("crashed", "started more than")
def breeds(q, k, v, sm_scale):
    """Start more processes than nsabench allows. Linux's own limit does not hold for root."""
    for _ in range(100):
        if not os.fork():
            time.sleep(600)
    time.sleep(600)


@attack("wrong", "L2 set aside from", device="cuda")
def sets_the_cache_aside(q, k, v, sm_scale):
    """Set a part of L2 aside for persisting data, so that later kernels have less of it."""
    runtime = ctypes.CDLL("libcudart.so")
    runtime.cudaDeviceSetLimit(6, ctypes.c_size_t(16 << 20))
